package scandir

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/handover"
	"hinit/supervisor"
)

// successor ends a scanner and begins another with what that has handed over, as the next image of the process would. The
// descriptors of the first are closed by its end, so the second gets copies.
func successor(t *testing.T, h *host, g Ground, old *Scanner, stop context.CancelFunc) *Scanner {
	t.Helper()
	release, err := old.Hold(t.Context())
	must(t, err)
	data, keep, err := old.Export(handover.NewCodec())
	must(t, err)
	copies := make(map[int]int)
	for _, fd := range keep {
		copies[fd], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		must(t, err)
	}
	var in handed
	must(t, handover.NewCodec().Decode(data, &in))
	in.Lock = copies[in.Lock]
	files := make(map[int]*os.File)
	for i := range in.Pairs {
		p := &in.Pairs[i]
		if p.Service.Pin >= 0 {
			p.Service.Pin = copies[p.Service.Pin]
		}
		for _, end := range []*int{&p.Read, &p.Write} {
			if *end >= 0 { // the supervisor's files
				*end = copies[*end]
				files[*end] = os.NewFile(uintptr(*end), "copy")
			}
		}
	}
	data, err = handover.NewCodec().Encode(&in)
	must(t, err)
	release()
	stop()
	<-old.Ended()
	return resume(t, h, g, data, files)
}

func resume(t *testing.T, h *host, g Ground, data json.RawMessage, files map[int]*os.File) *Scanner {
	t.Helper()
	next, err := Resume(h, g, handover.NewCodec(), data, files)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	next.Start(ctx)
	t.Cleanup(func() { cancel(); <-next.Ended() })
	<-next.Resumed()
	return next
}

// first opens a scanner that ends with the returned function.
func first(t *testing.T, h *host, g Ground) (*Scanner, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := Open(ctx, h, g)
	must(t, err)
	return s, cancel
}

var loggedFiles = map[string]string{"run": "#!/bin/sh\n", "finish": "#!/bin/sh\n", "log/run": "#!/bin/sh\n"}

func TestASuccessorFindsWhatIsThereAndMakesNothingAnew(t *testing.T) {
	g, h := room(t), newHost()
	g.Env = []string{"A=1"}
	s, stop := first(t, h, g)
	must(t, s.PublishFixed(t.Context(), MainHermes, gatewayFiles))
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, true))
	must(t, s.Publish(t.Context(), "gateway-b", gatewayFiles, false))
	must(t, os.Remove(filepath.Join(g.Base, "container_environment/A")))
	lay(t, g, "logged", loggedFiles)
	must(t, s.Scan(t.Context()))
	before := names(s)
	info, err := os.Lstat(filepath.Join(g.Scan, "gateway-a"))
	must(t, err)

	next := successor(t, h, g, s, stop)
	if after := names(next); after != before {
		t.Errorf("before %v, after %v", before, after)
	}
	if again, err := os.Lstat(filepath.Join(g.Scan, "gateway-a")); err != nil || !os.SameFile(info, again) {
		t.Errorf("the slot is another one: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(g.Base, "container_environment/A")); !os.IsNotExist(err) {
		t.Errorf("the environment was written again: %v", err)
	}
	if slot, err := next.Find(g.Scan + "/gateway-a"); err != nil || slot.NormallyUp() || !slot.Native() {
		t.Errorf("%v, %v", slot, err)
	}
	if slot, err := next.Find(g.Scan + "/" + MainHermes); err != nil || !slot.Fixed() {
		t.Errorf("%v, %v", slot, err)
	}
	if _, err := Open(t.Context(), h, g); err == nil {
		t.Error("another scanner could take the directory over")
	}
	must(t, next.Prune(t.Context()))
	if gone := h.unregistered(); len(gone) != 0 || h.heard("") != 0 {
		t.Errorf("gone: %v, said: %v", gone, h.said)
	}

	// It works: what comes and goes is noticed.
	lay(t, g, "late", map[string]string{"run": "#!/bin/sh\n"})
	must(t, next.Scan(t.Context()))
	must(t, os.RemoveAll(filepath.Join(g.Scan, "logged")))
	until(t, "the removed one is gone", func() bool { return !h.has("logged") && h.has("late") })
}

func TestASuccessorHasThePipeBetweenAServiceAndItsLogger(t *testing.T) {
	g, h := room(t), newHost()
	s, stop := first(t, h, g)
	lay(t, g, "logged", loggedFiles)
	must(t, s.Scan(t.Context()))
	_, err := h.unit("logged").Stdout.WriteString("before\n")
	must(t, err)

	next := successor(t, h, g, s, stop)
	must(t, next.Prune(t.Context()))
	_, err = h.unit("logged").Stdout.WriteString("after\n")
	must(t, err)
	text := make([]byte, len("before\nafter\n"))
	if _, err := io.ReadFull(h.unit("logged/log").Stdin, text); err != nil || string(text) != "before\nafter\n" {
		t.Errorf("%q, %v", text, err)
	}
	u := h.unit("logged")
	spec := Finish(u.Name, u.Spec)(supervisor.Exit{Signal: 9, PID: 5})
	if want := u.Finish(supervisor.Exit{Signal: 9, PID: 5}); spec.Dir != want.Dir || len(spec.Argv) != 5 || spec.Argv[1] != "256" {
		t.Errorf("finish is %v, expected %v", spec, want)
	}
}

func TestWhatIsRemovedWhileTheImagesChangeIsNoticed(t *testing.T) {
	g, h := room(t), newHost()
	s, stop := first(t, h, g)
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, false))
	lay(t, g, "gone", map[string]string{"run": "#!/bin/sh\n"})
	lay(t, g, "replaced", map[string]string{"run": "#!/bin/sh\n"})
	must(t, s.Scan(t.Context()))
	release, err := s.Hold(t.Context())
	must(t, err)
	data, _, err := s.Export(handover.NewCodec())
	must(t, err)
	var in handed
	must(t, handover.NewCodec().Decode(data, &in))
	in.Lock = -1
	for i := range in.Pairs {
		in.Pairs[i].Read, in.Pairs[i].Write, in.Pairs[i].Service.Pin = -1, -1, -1
	}
	data, err = handover.NewCodec().Encode(&in)
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(g.Scan, "gateway-a")))
	must(t, os.RemoveAll(filepath.Join(g.Scan, "gone")))
	must(t, g.Agent.Do(func() error {
		return os.Rename(filepath.Join(g.Scan, "replaced"), filepath.Join(g.Scan, ".aside"))
	}))
	lay(t, g, "replaced", map[string]string{"run": "#!/bin/sh\n"})
	stop()
	release()
	<-s.Ended()

	h = newHost() // that has heard nothing yet
	for _, name := range []string{"gone", "replaced"} {
		must(t, h.Register(t.Context(), supervisor.Unit{Name: name}, supervisor.WantUp))
	}
	resume(t, h, g, data, nil)
	until(t, "all are noticed", func() bool {
		return len(h.unregistered()) == 1 && !h.has("gone") && !h.has("replaced")
	})
}

func TestAScannerThatDoesNotComeToRestIsNotWaitedForLong(t *testing.T) {
	g, h := room(t), newHost()
	s := open(t, h, g)
	release, err := s.Hold(t.Context())
	must(t, err)
	defer release()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Hold(short); err == nil {
		t.Error("it was held twice")
	}
}

func names(s *Scanner) [5]string {
	var out [5]string
	for i, slot := range s.Slots() {
		out[i] = slot.Name
	}
	return out
}
