package scandir

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/reexec"
	"hinit/supervisor"
)

// replaceScanner ends a scanner and opens another with its handover. It duplicates the files first, because the end of the old
// scanner closes them.
func replaceScanner(t *testing.T, h *host, g Layout, old *Scanner, stop context.CancelFunc) *Scanner {
	t.Helper()
	release, err := old.Hold()
	must(t, err)
	in := old.HandOver()
	c := reexec.NewCodec()
	_, err = c.Encode(in)
	must(t, err)
	descriptors := len(c.Descriptors())
	copies := make(map[*os.File]*os.File)
	for _, f := range handoverFiles(in) {
		if *f == nil {
			continue
		}
		if copies[*f] == nil {
			fd, err := unix.FcntlInt((*f).Fd(), unix.F_DUPFD_CLOEXEC, 3)
			must(t, err)
			copies[*f] = os.NewFile(uintptr(fd), "copy")
		}
		*f = copies[*f]
	}
	if descriptors != len(copies) {
		t.Errorf("%d descriptors for %d files", descriptors, len(copies))
	}
	state, err := reexec.NewCodec().Encode(in)
	must(t, err)
	successorFiles = append(successorFiles, copies)
	release()
	stop()
	<-old.Ended()
	next := new(Handover)
	must(t, reexec.NewCodec().Decode(state, next))
	return resumeScanner(t, h, g, next)
}

// successorFiles keeps the files whose descriptors a successor owns from the garbage collector, which would close them.
var successorFiles []map[*os.File]*os.File

// handoverFiles returns pointers to all files in a handover.
func handoverFiles(in *Handover) []**os.File {
	list := []**os.File{&in.Lock}
	for _, service := range in.Pairs {
		list = append(list, &service.Main.Pin, &service.Read, &service.Write)
		if service.LoggerDir != nil {
			list = append(list, &service.LoggerDir.Pin)
		}
	}
	return list
}

func resumeScanner(t *testing.T, h *host, g Layout, in *Handover) *Scanner {
	t.Helper()
	next, err := TakeOver(h, g, in)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	next.Start(ctx)
	t.Cleanup(func() { cancel(); <-next.Ended() })
	<-next.resumed
	return next
}

// openWithCancel opens a scanner. The returned function ends it.
func openWithCancel(t *testing.T, h *host, g Layout) (*Scanner, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := Open(ctx, h, g)
	must(t, err)
	return s, cancel
}

var serviceWithLogger = map[string]string{"run": "#!/bin/sh\n", "finish": "#!/bin/sh\n", "log/run": "#!/bin/sh\n"}

func TestASuccessorFindsWhatIsThereAndMakesNothingAnew(t *testing.T) {
	t.Parallel()
	g, h := newLayout(t), newHost()
	g.Env = []string{"A=1"}
	s, stop := openWithCancel(t, h, g)
	must(t, s.PublishFixed(t.Context(), mainHermes, gatewayFiles))
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, true))
	must(t, s.Publish(t.Context(), "gateway-b", gatewayFiles, false))
	must(t, os.Remove(filepath.Join(g.BaseDir, "container_environment/A")))
	makeServiceDir(t, g, "logged", serviceWithLogger)
	must(t, s.Scan(t.Context()))
	before := slotNames(s)
	info, err := os.Lstat(filepath.Join(g.ScanDir, "gateway-a"))
	must(t, err)

	next := replaceScanner(t, h, g, s, stop)
	if after := slotNames(next); after != before {
		t.Errorf("before %v, after %v", before, after)
	}
	if again, err := os.Lstat(filepath.Join(g.ScanDir, "gateway-a")); err != nil || !os.SameFile(info, again) {
		t.Errorf("the slot is another one: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(g.BaseDir, "container_environment/A")); !os.IsNotExist(err) {
		t.Errorf("the environment was written again: %v", err)
	}
	if slot, err := next.Find(t.Context(), g.ScanDir+"/gateway-a"); err != nil || slot.NormallyUp() || !slot.IsNative() {
		t.Errorf("%v, %v", slot, err)
	}
	if slot, err := next.Find(t.Context(), g.ScanDir+"/"+mainHermes); err != nil || !slot.IsFixed() {
		t.Errorf("%v, %v", slot, err)
	}
	if _, err := Open(t.Context(), h, g); err == nil {
		t.Error("another scanner could take the directory over")
	}
	must(t, next.HandleRemoved(t.Context()))
	if gone := h.unregistered(); len(gone) != 0 || h.countMessages("") != 0 {
		t.Errorf("gone: %v, said: %v", gone, h.messages)
	}

	makeServiceDir(t, g, "late", map[string]string{"run": "#!/bin/sh\n"})
	must(t, next.Scan(t.Context()))
	must(t, os.RemoveAll(filepath.Join(g.ScanDir, "logged")))
	waitUntil(t, "the removed one is gone", func() bool { return !h.has("logged") && h.has("late") })
}

func TestASuccessorHasThePipeBetweenAServiceAndItsLogger(t *testing.T) {
	g, h := newLayout(t), newHost()
	s, stop := openWithCancel(t, h, g)
	makeServiceDir(t, g, "logged", serviceWithLogger)
	must(t, s.Scan(t.Context()))
	_, err := h.unit("logged").StdOverrides[1].WriteString("before\n")
	must(t, err)

	next := replaceScanner(t, h, g, s, stop)
	must(t, next.HandleRemoved(t.Context()))
	_, err = h.unit("logged").StdOverrides[1].WriteString("after\n")
	must(t, err)
	text := make([]byte, len("before\nafter\n"))
	if _, err := io.ReadFull(h.unit("logged/log").StdOverrides[0], text); err != nil || string(text) != "before\nafter\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestWhatIsRemovedDuringAReexecutionIsNoticed(t *testing.T) {
	g, h := newLayout(t), newHost()
	s, stop := openWithCancel(t, h, g)
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, false))
	makeServiceDir(t, g, "gone", map[string]string{"run": "#!/bin/sh\n"})
	makeServiceDir(t, g, "replaced", map[string]string{"run": "#!/bin/sh\n"})
	must(t, s.Scan(t.Context()))
	release, err := s.Hold()
	must(t, err)
	in := s.HandOver()
	for _, f := range handoverFiles(in) {
		*f = nil
	}
	must(t, os.RemoveAll(filepath.Join(g.ScanDir, "gateway-a")))
	must(t, os.RemoveAll(filepath.Join(g.ScanDir, "gone")))
	must(t, g.Agent.Do(func() error {
		return os.Rename(filepath.Join(g.ScanDir, "replaced"), filepath.Join(g.ScanDir, ".aside"))
	}))
	makeServiceDir(t, g, "replaced", map[string]string{"run": "#!/bin/sh\n"})
	stop()
	release()
	<-s.Ended()

	h = newHost()
	for _, name := range []string{"gone", "replaced"} {
		must(t, h.Register(t.Context(), supervisor.Unit{Name: name}, supervisor.WantUp))
	}
	resumeScanner(t, h, g, in)
	waitUntil(t, "all are noticed", func() bool {
		return len(h.unregistered()) == 1 && !h.has("gone") && !h.has("replaced")
	})
}

func TestAScannerThatDoesNotComeToRestIsNotWaitedForLong(t *testing.T) {
	g, h := newLayout(t), newHost()
	g.holdTimeout = time.Second
	s := openScanner(t, h, g)
	release, err := s.Hold()
	must(t, err)
	defer release()
	if _, err := s.Hold(); err == nil {
		t.Error("it was held twice")
	}
}

func slotNames(s *Scanner) [5]string {
	var out [5]string
	for i, slot := range s.Slots() {
		out[i] = slot.Name
	}
	return out
}

// The names in the JSON must stay, because older versions wrote them.
func TestTheNamesOnTheWireStay(t *testing.T) {
	const wire = `{"Slots":[{"Name":"a","Kind":2,"ID":{"dev":1,"ino":2},"Link":{"dev":3,"ino":4},"Exports":[["K","v"]]}],` +
		`"Pairs":[{"Name":"a","Leaving":true,"Service":{"Path":"/a","ID":{"dev":1,"ino":2},"Root":true,"Pin":-1,"Said":"x"},` +
		`"Logger":{"Path":"/a/log","ID":{"dev":5,"ino":6},"Root":false,"Pin":-1,"Said":""},"Read":1,"Write":-1}],` +
		`"Ending":[["b/log",{"wall":1}]],"Later":[["c",{"kind":1,"files":{"Run":"r","Finish":"","Log":""},"down":true,"failed":true}]],` +
		`"Refused":[["d",{"dev":7,"ino":8}]],"Lock":-1}`
	var h Handover
	must(t, reexec.NewCodec().Decode([]byte(wire), &h))
	again, err := reexec.NewCodec().Encode(&h)
	must(t, err)
	var want, got any
	must(t, errors.Join(json.Unmarshal([]byte(wire), &want), json.Unmarshal(again, &got)))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
