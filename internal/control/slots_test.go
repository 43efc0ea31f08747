package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
)

func (f *fakeBackend) S6() Slots {
	if f.slots == nil {
		return nil
	}
	return f
}

func (f *fakeBackend) Slots(context.Context) []client.Slot {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []client.Slot
	for _, dir := range slices.Sorted(maps.Keys(f.slots)) {
		out = append(out, f.slots[dir])
	}
	return out
}

func (f *fakeBackend) Slot(_ context.Context, dir string) (client.Slot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	slot, ok := f.slots[dir]
	if f.countsSlotQueries {
		f.commands = append(f.commands, "look")
	}
	if !ok {
		return client.Slot{}, newError(client.KindUnknown, "no such slot")
	}
	return slot, nil
}

func (f *fakeBackend) SlotControl(_ context.Context, dir, letters string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commands = append(f.commands, "svc "+letters+" "+dir)
	return nil
}

func (f *fakeBackend) ControlScanner(_ context.Context, letters string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commands = append(f.commands, "scan "+letters)
	return nil
}

// changeSlot changes a slot and publishes it. With a nil change, it removes the slot.
func (f *fakeBackend) changeSlot(dir string, change func(*client.Slot)) {
	f.mu.Lock()
	slot := f.slots[dir]
	if change == nil {
		delete(f.slots, dir)
	} else {
		change(&slot)
		f.slots[dir] = slot
	}
	f.mu.Unlock()
	f.setServices()
}

const slotDir = "/run/service/foo"

func newSlotBackend(slot client.Slot) *fakeBackend {
	core := newFakeBackend()
	slot.Name, slot.Dir = "foo", slotDir
	core.slots = map[string]client.Slot{slotDir: slot, "/run/service/bar": {Name: "bar", Dir: "/run/service/bar"}}
	return core
}

func TestSlotsAreAnsweredAsTheyAre(t *testing.T) {
	since := time.Date(2026, 11, 21, 1, 2, 3, 456789012, time.UTC)
	s := serve(t, newSlotBackend(client.Slot{Up: true, PID: 12, Since: since, ExitCode: -1}), readableByAll)
	all, err := s.client().Slots(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "bar" || all[1].PID != 12 || !all[1].Since.Equal(since) {
		t.Errorf("%+v, %v; want bar and foo, to the nanosecond", all, err)
	}
	if one, err := s.client().Slot(t.Context(), slotDir); err != nil || one != all[1] {
		t.Errorf("%+v, %v", one, err)
	}
	if _, err := s.client().Slot(t.Context(), "/run/service/nobody"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("a slot that is none: %v", err)
	}
	if _, err := s.client().Slot(t.Context(), "foo"); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("a relative path: %v", err)
	}
}

func TestWithoutS6ThereIsNoSlot(t *testing.T) {
	s := serve(t, newFakeBackend(), readableByAll)
	if all, err := s.client().Slots(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	_, one := s.client().Slot(t.Context(), slotDir)
	_, wait := s.client().SlotWait(t.Context(), slotDir, "u")
	for _, err := range []error{one, wait, s.client().SlotControl(t.Context(), slotDir, "u"), s.client().ControlScanner(t.Context(), "a")} {
		if !errors.Is(err, client.ErrUnknown) || !strings.Contains(err.Error(), "HINIT_S6") {
			t.Errorf("%v does not say how to have them", err)
		}
	}
}

func TestLettersArriveInOrderOrNotAtAll(t *testing.T) {
	core := newSlotBackend(client.Slot{})
	c := serve(t, core, readableByAll).client()
	if err := errors.Join(c.SlotControl(t.Context(), slotDir, "du"), c.ControlScanner(t.Context(), "an"), c.SlotControl(t.Context(), slotDir, "")); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"uz", "u ", "-u", strings.Repeat("u", maxCommandLetters+1)} {
		if err := c.SlotControl(t.Context(), slotDir, flags); !errors.Is(err, client.ErrBadRequest) {
			t.Errorf("s6-svc %q: %v", flags, err)
		}
	}
	if err := c.ControlScanner(t.Context(), "ax"); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("s6-svscanctl -ax: %v", err)
	}
	if got, want := core.receivedCommands(), "svc du /run/service/foo, scan an, svc  /run/service/foo"; got != want {
		t.Errorf("the core was asked %q, want %q", got, want)
	}
}

func startSlotWait(t *testing.T, s *testServer, until string) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		slot, err := s.client().SlotWait(context.Background(), slotDir, until)
		if err == nil && slot.Name != "foo" {
			err = errors.New("another slot: " + slot.Name)
		}
		result <- err
	}()
	return result
}

func TestAWaitEndsWhenTheSlotIsThere(t *testing.T) {
	up := func(s *client.Slot) { s.Up, s.PID, s.RunNumber, s.Finishing = true, 9, s.RunNumber+1, false }
	ready := func(s *client.Slot) { s.Ready = true }
	down := func(s *client.Slot) { s.Up, s.Ready, s.PID, s.Finishing = false, false, 0, true }
	finished := func(s *client.Slot) { s.Finishing = false }
	for wait, tt := range map[string]struct {
		from  client.Slot
		steps []func(*client.Slot) // no step before the last may end the wait
	}{
		"u":  {client.Slot{}, []func(*client.Slot){finished, up}},
		"U":  {client.Slot{}, []func(*client.Slot){up, ready}},
		"d":  {client.Slot{Up: true, RunNumber: 3}, []func(*client.Slot){ready, down}},
		"D":  {client.Slot{Up: true, RunNumber: 3}, []func(*client.Slot){down, finished}},
		"r":  {client.Slot{Up: true, RunNumber: 3}, []func(*client.Slot){down, up}},
		"R":  {client.Slot{Up: true, RunNumber: 3}, []func(*client.Slot){down, up, ready}},
		"r3": {client.Slot{Up: true, RunNumber: 3}, []func(*client.Slot){down, up}},
		// the wait must not miss the moment in which the slot is down
		"D3": {client.Slot{Up: true, RunNumber: 3}, []func(*client.Slot){down, up}},
	} {
		core := newSlotBackend(tt.from)
		core.countsSlotQueries = true
		s := serve(t, core, readableByAll)
		done := startSlotWait(t, s, wait)
		testkit.Until(t, "it has seen how the slot was", func() bool { return core.receivedCommands() != "" })
		for i, step := range tt.steps {
			select {
			case err := <-done:
				t.Errorf("until %s: over before step %d: %v", wait, i, err)
			case <-time.After(20 * time.Millisecond):
			}
			core.changeSlot(slotDir, step)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("until %s: %v", wait, err)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("until %s: never over", wait)
		}
	}
}

func TestAWaitForWhatIsThereAlreadyIsOverAtOnce(t *testing.T) {
	for until, slot := range map[string]client.Slot{
		"u": {Up: true}, "U": {Up: true, Ready: true}, "d": {}, "D": {}, "r2": {Up: true, RunNumber: 3}, "R2": {Up: true, Ready: true, RunNumber: 3},
		"d2": {Up: true, RunNumber: 3},
	} {
		if _, err := serve(t, newSlotBackend(slot), readableByAll).client().SlotWait(t.Context(), slotDir, until); err != nil {
			t.Errorf("until %s: %v", until, err)
		}
	}
}

func TestAWaitForWhatWillNeverBeIsAnError(t *testing.T) {
	kind := func(err error) client.Kind {
		e := (*client.Error)(nil)
		errors.As(err, &e)
		return e.Kind
	}
	core := newSlotBackend(client.Slot{})
	s := serve(t, core, readableByAll)
	done := startSlotWait(t, s, "u")
	core.changeSlot(slotDir, func(s *client.Slot) { s.PermanentFailure, s.EverStarted, s.ExitCode = true, true, 78 })
	if err := <-done; kind(err) != client.KindPermanent || !strings.Contains(err.Error(), "78") {
		t.Errorf("its finish says never again: %v", err)
	}
	core = newSlotBackend(client.Slot{Up: true})
	core.countsSlotQueries = true
	s = serve(t, core, readableByAll)
	gone, down := startSlotWait(t, s, "r"), startSlotWait(t, s, "D")
	testkit.Until(t, "both wait", func() bool { return core.receivedCommands() == "look, look" })
	core.changeSlot(slotDir, nil)
	if err := <-gone; kind(err) != client.KindPermanent {
		t.Errorf("it is removed: %v", err)
	}
	if err := <-down; err != nil {
		t.Errorf("what is removed is down: %v", err)
	}
	for _, bad := range []string{"", "x", "u-1", "rr", "u1x"} {
		if _, err := s.client().SlotWait(t.Context(), slotDir, bad); !errors.Is(err, client.ErrBadRequest) {
			t.Errorf("until %q: %v", bad, err)
		}
	}
	if _, err := s.client().SlotWait(t.Context(), slotDir, "u"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("a slot that is none: %v", err)
	}
}
