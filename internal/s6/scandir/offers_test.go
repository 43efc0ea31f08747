package scandir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// offerMany offers many slots, of which the scanner makes one after the other.
func offerMany(s *Scanner, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("gateway-p%03d", i)
		s.Offer(names[i], gatewayFiles, true)
	}
	return names
}

func (g Ground) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(g.Scan, name))
	return err == nil
}

// What a user saw: boot took 46 seconds with 2,000 services, because the slot of each was made before any of them was started; and
// s6-svc -d of a slot that status had shown said that there was no such directory.
func TestASlotThatIsOfferedIsThereWhenSomebodyLooks(t *testing.T) {
	g, h := room(t), newHost()
	s := open(t, h, g)
	names := offerMany(s, 300)
	made := s.Offered()
	last := names[len(names)-1]
	if !s.Has(last) {
		t.Error("what is offered does not count as a slot")
	}
	must(t, s.SetDown(names[0], false))
	must(t, s.SetDown(last, false))
	must(t, s.Need(t.Context(), filepath.Join(g.Scan, last)))
	if !g.exists(last + "/supervise/control") {
		t.Error("the slot that was asked for is not there")
	}
	if slot, err := s.Find(filepath.Join(g.Scan, last)); err != nil || !slot.Native() || !slot.NormallyUp() {
		t.Errorf("the slot that was asked for: %+v, %v", slot, err)
	}
	must(t, s.Need(t.Context(), filepath.Join(g.Scan, names[200], "log")))
	if slot, err := s.Find(filepath.Join(g.Scan, names[200], "log")); err != nil {
		t.Errorf("its logger: %+v, %v", slot, err)
	}
	must(t, s.Need(t.Context(), filepath.Join(g.Scan, "nobody")))
	must(t, s.Withdraw(t.Context(), names[299-1]))
	<-made
	for i, name := range names {
		slot, err := s.Find(filepath.Join(g.Scan, name))
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
	if len(h.unregistered()) != 0 || h.heard("") != 0 {
		t.Errorf("gone: %v, said: %v", h.unregistered(), h.said)
	}
}

func TestASlotThatTheAgentMakesBeforeItsOfferStays(t *testing.T) {
	g, h := room(t), newHost()
	s := open(t, h, g)
	lay(t, g, "gateway-p001", map[string]string{"run": "#!/bin/sh\n", "mine": "x"})
	offerMany(s, 3)
	<-s.Offered()
	if !g.exists("gateway-p001/mine") || !s.Has("gateway-p001") || !s.Has("gateway-p002") {
		t.Errorf("slots: %v", names(s))
	}
}

func TestASuccessorMakesWhatWasOffered(t *testing.T) {
	g, h := room(t), newHost()
	s, stop := first(t, h, g)
	must(t, s.do(context.Background(), func() { offerMany(s, 40) })) // it makes none meanwhile
	next := successor(t, h, g, s, stop)
	<-next.Offered()
	if !g.exists("gateway-p000/down") || !g.exists("gateway-p039/down") || !next.Has("gateway-p039") {
		t.Errorf("slots: %v", names(next))
	}
}

// What a user saw: a profile that was made while the disk of /run was full had no slot for s6-svc until the container was started again.
func TestASlotThatCouldNotBeMadeIsMadeWhenTheDiskIsWellAgain(t *testing.T) {
	g, h := room(t), newHost()
	s := open(t, h, g)
	must(t, os.Chmod(g.Scan, 0o555)) // nobody but root makes anything there, and slots are made as the agent's user
	if err := s.Publish(t.Context(), "gateway-a", gatewayFiles, true); err == nil {
		t.Fatal("a slot was made where nothing can be")
	}
	s.Offer("gateway-b", gatewayFiles, true)
	<-s.Offered()
	must(t, s.do(t.Context(), s.catchUp))
	if n := h.heard("cannot make the slot of"); n != 1 {
		t.Errorf("what can't be made was told %d times", n)
	}
	must(t, os.Chmod(g.Scan, 0o755))
	until(t, "the slots are made", func() bool {
		return s.Has("gateway-a") && s.Has("gateway-b") && g.exists("gateway-b/supervise/control")
	})
}
