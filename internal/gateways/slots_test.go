package gateways_test

import (
	"slices"
	"strings"
	"testing"

	"hinit/client"
	"hinit/internal/s6/formats"
)

// A start must restore a removed slot, without the exports of the removed slot.
func TestASlotThatAClientRemovedComesBackWithAStart(t *testing.T) {
	h, m := newHost(t, "coder")
	h.startManager(m)
	if err := m.SlotMade(t.Context(), "coder", true, map[string]string{"A": "1"}); err != nil {
		t.Fatal(err)
	}
	if exports := m.Registry.Exports("gateway-coder"); exports["A"] != "1" || !m.Registry.HasSlot("gateway-coder") || !h.hasEvent("Start{Name:gateway-coder}")() {
		t.Errorf("exports %q, the supervisor got %q", exports, h.copyCalls().events)
	}
	m.SlotRemoved(t.Context(), "gateway-coder")
	if m.Registry.HasSlot("gateway-coder") || !h.hasEvent("Stop{Name:gateway-coder}")() {
		t.Errorf("the supervisor got %q", h.copyCalls().events)
	}
	const made = "slot of gateway-coder, down: true"
	if err := m.Command(t.Context(), client.VerbStop, "gateway-coder"); err != nil || slices.Contains(h.copyCalls().supervisorEvents, made) {
		t.Errorf("a stop made the slot: %q, %v", h.copyCalls().supervisorEvents, err)
	}
	if err := m.Command(t.Context(), client.VerbStart, "gateway-coder"); err != nil || !slices.Contains(h.copyCalls().supervisorEvents, made) {
		t.Errorf("a start did not make the slot: %q, %v", h.copyCalls().supervisorEvents, err)
	}
	if exports := m.Registry.Exports("gateway-coder"); exports != nil || h.copyCalls().down["coder"] {
		t.Errorf("the new slot exports %q, and its down file is there: %v", exports, h.copyCalls().down["coder"])
	}
}

// The slot of a new profile must exist before its service is registered, because a client that sees the service looks for its
// slot next.
func TestAProfileHasItsSlotWhenHinitHasFoundIt(t *testing.T) {
	h, m := newHost(t)
	h.startManager(m)
	h.makeProfile("coder")
	if err := m.FindProfile(t.Context(), "coder"); err != nil {
		t.Fatal(err)
	}
	messages := h.copyCalls().supervisorEvents
	soon, registered := slices.Index(messages, "slot of gateway-coder soon, down: true"), slices.Index(messages, "coder beside: false")
	if complete := slices.Index(messages, "slot of gateway-coder, down: true"); soon < 0 || registered < soon || complete < registered {
		t.Errorf("in another order: %q", messages)
	}
}

// A gateway whose service name is too long for a directory name must get no slot. Otherwise PID 1 tries to make the slot every
// second, and writes two lines about each such profile.
func TestAProfileWithALongNameHasNoSlot(t *testing.T) {
	h, m := newHost(t)
	h.startManager(m)
	for _, name := range []string{strings.Repeat("l", formats.MaxName), strings.Repeat("l", formats.MaxName-len("gateway-"))} {
		h.makeProfile(name)
		if err := m.FindProfile(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		_, registered := h.copyCalls().startByProfile[name]
		made := slices.Contains(h.copyCalls().supervisorEvents, "slot of gateway-"+name+" soon, down: true")
		if fits := len("gateway-"+name) <= formats.MaxName; !registered || made != fits {
			t.Errorf("%d letters: registered %v, has a slot %v", len(name), registered, made)
		}
	}
}
