package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/s6"
	"hinit/internal/s6/scandir"
	"hinit/profiles"
	"hinit/supervisor"
)

// intentTime is how long a command to a slot waits for the data volume before it goes on without: who asks as s6 does has
// no patience (contract of s6, section 1).
const intentTime = 2 * time.Second

// Acts implements control.Slots.
func (a core) Acts() bool { return a.c.s6.Load() != nil }

// Slots implements control.Slots.
func (a core) Slots(context.Context) []client.Slot {
	scanner := a.c.s6.Load()
	if scanner == nil {
		return nil
	}
	snap := a.c.loop.Snapshot()
	services := make(map[string]*supervisor.Service, len(snap.Services))
	for _, v := range snap.Services {
		services[v.Name] = v
	}
	var out []client.Slot
	for _, slot := range scanner.Slots() {
		if slot.Fixed() {
			out = append(out, a.c.fixedSlot(slot))
		} else if v := services[slot.Name]; v != nil { // else it is about to be one, or was
			out = append(out, scandir.View(v, slot.Dir, slot.NormallyUp()))
		}
	}
	return out
}

// Slot implements control.Slots.
func (a core) Slot(_ context.Context, dir string) (client.Slot, error) {
	slot, err := a.c.findSlot(dir)
	if err != nil {
		return client.Slot{}, err
	}
	if slot.Fixed() {
		return a.c.fixedSlot(slot), nil
	}
	v := a.c.loop.Snapshot().Find(slot.Name)
	if v == nil {
		return client.Slot{}, &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("%s is not supervised", slot.Name)}
	}
	return scandir.View(v, slot.Dir, slot.NormallyUp()), nil
}

func (c *container) findSlot(dir string) (*scandir.Slot, error) {
	scanner := c.s6.Load()
	if scanner == nil {
		return nil, supervisor.ErrUnknown
	}
	slot, err := scanner.Find(dir)
	if errors.Is(err, scandir.ErrUnknown) {
		return nil, &client.Error{Kind: client.KindUnknown, Message: err.Error()}
	}
	return slot, err
}

// fixedSlot is a slot without a service: hinit itself stands for it.
func (c *container) fixedSlot(slot *scandir.Slot) client.Slot {
	return client.Slot{
		Name: slot.Name, Dir: slot.Dir, Up: true, WantUp: true, NormallyUp: slot.NormallyUp(), Started: true, Run: 1,
		PID: os.Getpid(), PGID: os.Getpid(), ExitCode: -1, Since: c.started.UTC(),
	}
}

// SlotControl implements control.Slots.
func (a core) SlotControl(ctx context.Context, dir, letters string) error {
	slot, err := a.c.findSlot(dir)
	if err != nil || slot.Fixed() {
		return err
	}
	for i := range len(letters) {
		if err := a.c.letter(ctx, slot, letters[i]); err != nil {
			return err
		}
	}
	return nil
}

// letter carries out one command of s6-svc. What hinit runs by itself is asked for as with hinit's own commands, so that
// the intent is recorded; a foreign directory is told what s6 would tell it.
func (c *container) letter(ctx context.Context, slot *scandir.Slot, letter byte) error {
	name := slot.Name
	do := func(e supervisor.Event) error { return c.loop.Do(ctx, e) }
	switch letter {
	case 'u', 'U':
		if slot.Native() {
			return c.impatient(ctx, "start", name)
		}
		if letter == 'U' {
			if err := slot.SetDown(false); err != nil {
				return err
			}
		}
		if err := c.s6.Load().Refresh(ctx, name); err != nil {
			return err
		}
		return do(supervisor.Start{Name: name})
	case 'd', 'D':
		if slot.Native() {
			return c.impatient(ctx, "stop", name)
		}
		err := do(supervisor.Stop{Name: name})
		if letter == 'D' {
			err = errors.Join(err, slot.SetDown(true))
		}
		return err
	case 'o':
		return do(supervisor.Once{Name: name})
	case 'O':
		return do(supervisor.Unwant{Name: name})
	case 'Q':
		err := do(supervisor.Unwant{Name: name})
		if profile, gateway := profiles.SlotProfile(name); gateway && slot.Native() {
			return errors.Join(err, c.keeper.intend(ctx, profile, profiles.Stopped))
		}
		return errors.Join(err, slot.SetDown(true))
	case 'p', 'P':
		return do(supervisor.Pause{Name: name, Group: letter == 'P'})
	case 'c', 'C':
		return do(supervisor.Continue{Name: name, Group: letter == 'C'})
	case 'x':
		return nil // there is no supervisor of its own to be started again
	case 'l':
		return do(supervisor.SignalMain{Name: name, Signal: slot.ReloadSignal()})
	case 't', 'r':
		v := c.loop.Snapshot().Find(name)
		if slot.Native() && v != nil && v.State == supervisor.Up && v.Want == supervisor.WantUp {
			// A gateway that is asked to end exits with a code that looks like a failure.
			return do(supervisor.Restart{Name: name})
		}
		signal := int(unix.SIGTERM)
		if letter == 'r' {
			signal = 0 // the one that stops it
		}
		return do(supervisor.SignalMain{Name: name, Signal: signal})
	}
	signal, group := s6.SvcSignal(letter)
	if signal == 0 {
		return &client.Error{Kind: client.KindBadRequest, Message: fmt.Sprintf("%q is no command of s6-svc", letter)}
	}
	return do(supervisor.SignalMain{Name: name, Signal: signal, Group: group})
}

// impatient is a command whose intent is recorded, unless the volume takes too long: then the command is carried out at
// once and the intent recorded whenever it can be.
func (c *container) impatient(ctx context.Context, verb, name string) error {
	done := make(chan error, 1)
	guard.Go("carrying out a command", func() { done <- c.keeper.command(context.WithoutCancel(ctx), verb, name) })
	select {
	case err := <-done:
		return err
	case <-time.After(intentTime):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.say("[hinit] %s: the data volume does not answer, so the %s cannot be recorded yet", name, verb)
	return c.loop.Do(ctx, verbEvent(verb, name))
}

// SlotScan implements control.Slots.
func (a core) SlotScan(ctx context.Context, letters string) error {
	c := a.c
	scanner := c.s6.Load()
	for _, letter := range letters {
		var err error
		switch letter {
		case 'a', 'h':
			err = scanner.Scan(ctx)
		case 'n', 'N':
			err = scanner.Prune(ctx)
		case 't', 'q', 'b', 'i':
			c.loop.Post(supervisor.Shutdown{Reason: "s6-svscanctl asked for it"})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
