package scandir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func enqueueMany(s *Scanner, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("gateway-p%03d", i)
		s.Enqueue(names[i], gatewayFiles, true)
	}
	return names
}

func (l Layout) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(l.ScanDir, name))
	return err == nil
}

// A slot that the status shows but that is still in the queue must be made as soon as a client asks for it. With 2,000 services
// the queue takes long, and s6-svc would say "no such directory".
func TestASlotInTheQueueIsThereWhenSomebodyLooks(t *testing.T) {
	t.Parallel()
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	names := enqueueMany(s, 300)
	made := s.QueueDone()
	last := names[len(names)-1]
	if !s.Has(last) {
		t.Error("what is in the queue does not count as a slot")
	}
	s.SetDown(names[0], false)
	s.SetDown(last, false)
	must(t, s.makeIfQueued(t.Context(), filepath.Join(g.ScanDir, last)))
	if !g.exists(last + "/run") {
		t.Error("the slot that was asked for is not there")
	}
	if slot, err := s.Find(t.Context(), filepath.Join(g.ScanDir, last)); err != nil || !slot.IsNative() || !slot.NormallyUp() {
		t.Errorf("the slot that was asked for: %+v, %v", slot, err)
	}
	must(t, s.makeIfQueued(t.Context(), filepath.Join(g.ScanDir, names[200], "log")))
	if slot, err := s.Find(t.Context(), filepath.Join(g.ScanDir, names[200], "log")); err != nil {
		t.Errorf("its logger: %+v, %v", slot, err)
	}
	must(t, s.makeIfQueued(t.Context(), filepath.Join(g.ScanDir, "nobody")))
	must(t, s.RemoveSlot(t.Context(), names[299-1]))
	<-made
	for i, name := range names {
		slot, err := s.Find(t.Context(), filepath.Join(g.ScanDir, name))
		switch {
		case i == 298:
			if err == nil || g.exists(name) {
				t.Errorf("%s was taken back, and is there", name)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case slot.NormallyUp() != (i == 0 || i == 299):
			t.Errorf("%s is normally up: %v", name, slot.NormallyUp())
		}
	}
	if len(h.unregistered()) != 0 || h.countMessages("") != 0 {
		t.Errorf("gone: %v, said: %v", h.unregistered(), h.messages)
	}
}

func TestASlotThatTheAgentMakesBeforeItsTurnStays(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	makeServiceDir(t, g, "gateway-p001", map[string]string{"run": "#!/bin/sh\n", "mine": "x"})
	enqueueMany(s, 3)
	<-s.QueueDone()
	if !g.exists("gateway-p001/mine") || !s.Has("gateway-p001") || !s.Has("gateway-p002") {
		t.Errorf("slots: %v", slotNames(s))
	}
}

// The queue must first make the run scripts of all slots. Other files have no early reader, and writing them at once delayed
// docker run IMAGE true by 0.05 s.
func TestASlotInTheQueueGetsItsDefinitionFirst(t *testing.T) {
	g, h := newLayout(t), newHost()
	g.completeAfter = time.Hour
	s := openScanner(t, h, g)
	must(t, s.PublishFixed(t.Context(), mainHermes, Files{Run: "#!/bin/sh\n"}))
	s.Enqueue("gateway-a", gatewayFiles, true)
	<-s.QueueDone()
	for slot, want := range map[string]string{"gateway-a": "down run", mainHermes: "run"} {
		entries, err := os.ReadDir(filepath.Join(g.ScanDir, slot))
		must(t, err)
		var have []string
		for _, e := range entries {
			have = append(have, e.Name())
		}
		if got := strings.Join(have, " "); got != want {
			t.Errorf("%s holds %q, want %q", slot, got, want)
		}
	}
	s.Enqueue("gateway-c", gatewayFiles, true)
	must(t, s.Publish(t.Context(), "gateway-c", gatewayFiles, true))
	if !g.exists("gateway-c/log/supervise/control") {
		t.Error("a slot of the queue that somebody waits for is not complete")
	}
	must(t, s.doInScanner(t.Context(), func() { s.idleTimer.Reset(0) }))
	waitUntil(t, "the slots are complete", func() bool {
		return g.exists("gateway-a/log/supervise/control") && g.exists(mainHermes+"/supervise/control")
	})
	must(t, s.Publish(t.Context(), "gateway-b", gatewayFiles, true))
	if !g.exists("gateway-b/log/supervise/control") {
		t.Error("a slot that somebody waits for is not complete")
	}
}

func TestASuccessorMakesWhatWasInTheQueue(t *testing.T) {
	g, h := newLayout(t), newHost()
	s, stop := openWithCancel(t, h, g)
	// With one step for all slots, the queue makes none before the last is in it.
	must(t, s.doInScanner(context.Background(), func() { enqueueMany(s, 40) }))
	next := replaceScanner(t, h, g, s, stop)
	<-next.QueueDone()
	if !g.exists("gateway-p000/down") || !g.exists("gateway-p039/down") || !next.Has("gateway-p039") {
		t.Errorf("slots: %v", slotNames(next))
	}
}

// A slot that could not be made on a full /run must be made when the disk has space again.
func TestASlotThatCouldNotBeMadeIsMadeWhenTheDiskIsWellAgain(t *testing.T) {
	t.Parallel()
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	must(t, os.Chmod(g.ScanDir, 0o555)) // slots are made as the agent's user, so this fails now
	if err := s.Publish(t.Context(), "gateway-a", gatewayFiles, true); err == nil {
		t.Fatal("a slot was made where nothing can be")
	}
	s.Enqueue("gateway-b", gatewayFiles, true)
	<-s.QueueDone()
	must(t, s.doInScanner(t.Context(), s.retryFailed))
	if n := h.countMessages("cannot make the slot of"); n != 1 {
		t.Errorf("what can't be made was told %d times", n)
	}
	must(t, os.Chmod(g.ScanDir, 0o755))
	waitUntil(t, "the slots are made", func() bool {
		return s.Has("gateway-a") && s.Has("gateway-b") && g.exists("gateway-b/supervise/control")
	})
}
