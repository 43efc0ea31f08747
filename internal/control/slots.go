package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"hinit/client"
	"hinit/internal/pause"
	"hinit/internal/s6/formats"
)

// Slots gives access to the slots: the service directories of s6. hinit's versions of the programs of s6 use it. dir is an
// absolute path. If dir is not a slot, the error has the kind unknown.
type Slots interface {
	// Slots returns all slots, sorted by name.
	Slots(ctx context.Context) []client.Slot
	// Slot returns the slot with the service directory dir. It changes only with the snapshot of the supervisor.
	Slot(ctx context.Context, dir string) (client.Slot, error)
	// SlotControl carries out the option letters of s6-svc in their order. All letters must be valid.
	SlotControl(ctx context.Context, dir, letters string) error
	// ControlScanner carries out the option letters of s6-svscanctl in their order. All letters must be valid.
	ControlScanner(ctx context.Context, letters string) error
}

const (
	scannerCommands  = "zabhitqnN"
	shutdownCommands = "tqbi" // letters that end the container
)

func (s *Server) slotsBackend() Slots {
	if slots := s.backend.S6Slots(); slots != nil {
		return slots
	}
	return noSlots{}
}

type noSlots struct{}

var errNoSlots = newError(client.KindUnknown, "hinit does not answer as s6 in this container; HINIT_S6=1 makes it")

func (noSlots) Slots(context.Context) []client.Slot               { return nil }
func (noSlots) Slot(context.Context, string) (client.Slot, error) { return client.Slot{}, errNoSlots }
func (noSlots) SlotControl(context.Context, string, string) error { return errNoSlots }
func (noSlots) ControlScanner(context.Context, string) error      { return errNoSlots }

func getSlots(s *Server, r *request) (reply, error) {
	query := r.query
	if !query.Has("dir") {
		return s.makeAnswerLimited(r, func() (reply, error) {
			return okReply(client.SlotsReply{Slots: nonNil(s.slotsBackend().Slots(r.Context()))})
		})
	}
	slot, err := findSlot(r.Context(), s.slotsBackend(), query.Get("dir"))
	return deferredReply(http.StatusOK, client.SlotsReply{Slots: []client.Slot{slot}}, err)
}

func findSlot(ctx context.Context, core Slots, dir string) (client.Slot, error) {
	if err := checkAbsolute(dir); err != nil {
		return client.Slot{}, err
	}
	return core.Slot(ctx, dir)
}

func checkAbsolute(dir string) error {
	if !strings.HasPrefix(dir, "/") || strings.IndexByte(dir, 0) >= 0 {
		return newError(client.KindBadRequest, "dir is %q; it has to be an absolute path", dir)
	}
	return nil
}

func postSlotControl(s *Server, r *request, c client.SlotControl) (reply, error) {
	if err := errors.Join(checkAbsolute(c.Dir), checkCommandLetters(c.Flags, formats.SvcLetters)); err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, s.slotsBackend().SlotControl(r.Context(), c.Dir, c.Flags)
}

func postSlotScan(s *Server, r *request, c client.ScannerControl) (reply, error) {
	if err := checkCommandLetters(c.Flags, scannerCommands); err != nil {
		return reply{}, err
	}
	if strings.ContainsAny(c.Flags, shutdownCommands) {
		if refused := s.policy.check(r.client, mayShutDown); refused != nil {
			return reply{}, refused
		}
	}
	return reply{status: http.StatusNoContent}, s.slotsBackend().ControlScanner(r.Context(), c.Flags)
}

// checkCommandLetters returns an error if flags contains a letter that isn't in known. Call it before any letter is carried out,
// so that an unknown letter has no effects.
func checkCommandLetters(flags, known string) error {
	for _, l := range flags {
		if !strings.ContainsRune(known, l) {
			return newError(client.KindBadRequest, "flags are %q; %q is none of %s", flags, string(l), known)
		}
	}
	if len(flags) > maxCommandLetters {
		return newError(client.KindBadRequest, "%d flags at once are too many; %d are the limit", len(flags), maxCommandLetters)
	}
	return nil
}

const maxCommandLetters = 64

// getSlotWait answers when a slot has reached a state. s6-svwait and s6-svc -w use it.
func getSlotWait(s *Server, r *request) (reply, error) {
	query := r.query
	goal, err := parseUntil(query.Get("until"))
	if err != nil {
		return reply{}, err
	}
	if err := s.countWaiting(r); err != nil {
		return reply{}, err
	}
	slot, err := s.awaitSlot(r.Context(), s.slotsBackend(), query.Get("dir"), goal)
	return deferredReply(http.StatusOK, client.SlotsReply{Slots: []client.Slot{slot}}, err)
}

// slotGoal is the state of a slot that s6-svwait waits for. [dial.Client.SlotWait] explains the letters.
type slotGoal struct {
	letter byte
	run    uint64 // number of a run; r and R need a later run
	hasRun bool
}

// parseUntil parses the parameter "until" of a wait: a letter, and an optional number of a run.
func parseUntil(text string) (slotGoal, error) {
	bad := newError(client.KindBadRequest, "until is %q; it is one of u U d D r R, with the number of a run behind it or without", text)
	if text == "" || !strings.Contains("uUdDrR", text[:1]) {
		return slotGoal{}, bad
	}
	u := slotGoal{letter: text[0], hasRun: len(text) > 1}
	if u.hasRun {
		var err error
		if u.run, err = strconv.ParseUint(text[1:], 10, 64); err != nil {
			return slotGoal{}, bad
		}
	}
	return u, nil
}

// reached reports whether the slot has reached the goal. A later run than u.run proves that the slot was down in between, so it
// also counts as down.
func (u slotGoal) reached(s client.Slot) bool {
	down := !s.Up
	later := u.hasRun && s.RunNumber > u.run
	switch u.letter {
	case 'u':
		return s.Up
	case 'U':
		return s.Up && s.Ready
	case 'd':
		return down || later
	case 'D':
		return down && !s.Finishing || later
	case 'r':
		return s.Up && later
	}
	return s.Up && s.Ready && later
}

// awaitSlot blocks until a slot reaches the goal, can no longer reach it, or ctx ends.
func (s *Server) awaitSlot(ctx context.Context, core Slots, dir string, u slotGoal) (client.Slot, error) {
	var last client.Slot
	for first := true; ; first = false {
		changed := s.backend.Changed()
		slot, err := findSlot(ctx, core, dir)
		if !first && errors.Is(err, client.ErrUnknown) {
			return slotRemoved(last, u)
		}
		if err != nil {
			return client.Slot{}, err
		}
		last = slot
		if first && !u.hasRun {
			u.run, u.hasRun = slot.RunNumber, u.letter == 'r' || u.letter == 'R'
		}
		switch {
		case u.reached(slot):
			return slot, nil
		case slot.PermanentFailure && !slot.Up && u.letter != 'd' && u.letter != 'D':
			return client.Slot{}, newError(client.KindPermanent, "%s", permanentReason(slot))
		}
		if !pause.Until(ctx, changed) {
			return client.Slot{}, context.Cause(ctx)
		}
	}
}

func slotRemoved(slot client.Slot, u slotGoal) (client.Slot, error) {
	if u.letter == 'd' || u.letter == 'D' {
		slot.Up, slot.WantUp, slot.Ready, slot.Finishing, slot.PID, slot.PGID = false, false, false, false, 0, 0
		return slot, nil
	}
	return client.Slot{}, newError(client.KindPermanent, "%s was removed", slot.Name)
}

func permanentReason(s client.Slot) string {
	how := fmt.Sprintf("its last run exited with code %d", s.ExitCode)
	if s.Signal != 0 {
		how = fmt.Sprintf("its last run was ended by signal %d", s.Signal)
	}
	if !s.EverStarted {
		how = "it could not be started"
	}
	return fmt.Sprintf("%s will not come up by itself: %s", s.Name, how)
}
