package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/s6"
	"hinit/internal/s6/scandir"
	"hinit/profiles"
	"hinit/supervisor"
)

// intentTime is how long a command to a slot waits for the data volume. After that it is answered as taken in, which is all that s6
// promises (contract of s6, section 1).
const intentTime = 2 * time.Second

// Acts implements control.Slots.
func (a core) Acts() bool { return a.c.s6.Load() != nil }

// Slots implements control.Slots. It returns none when the scan directory does not answer in time.
func (a core) Slots(ctx context.Context) []client.Slot {
	var all []client.Slot
	if blocking.Wait(ctx, "looking at the scan directory", func() error { all = a.allSlots(); return nil }) != nil {
		return nil
	}
	return all
}

func (a core) allSlots() []client.Slot {
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
func (a core) Slot(ctx context.Context, dir string) (client.Slot, error) {
	var found client.Slot
	err := blocking.Wait(ctx, "looking for a service directory", func() (err error) {
		found, err = a.slot(ctx, dir)
		return err
	})
	if err != nil {
		return client.Slot{}, err
	}
	return found, nil
}

func (a core) slot(ctx context.Context, dir string) (client.Slot, error) {
	slot, err := a.c.findSlot(ctx, dir)
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

// findSlot returns the slot of a directory, and makes it first if it is still to be made.
func (c *container) findSlot(ctx context.Context, dir string) (*scandir.Slot, error) {
	scanner := c.s6.Load()
	if scanner == nil {
		return nil, supervisor.ErrUnknown
	}
	if err := scanner.Need(ctx, dir); err != nil {
		return nil, err
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

// SlotControl implements control.Slots. What has not come about when ctx ends goes on: the letters have been taken in.
func (a core) SlotControl(ctx context.Context, dir, letters string) error {
	return blocking.Wait(ctx, "what the service was asked for", func() error {
		return a.control(context.WithoutCancel(ctx), dir, letters)
	})
}

func (a core) control(ctx context.Context, dir, letters string) error {
	slot, err := a.c.findSlot(ctx, dir)
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
			return c.command(ctx, "start", name)
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
			return c.command(ctx, "stop", name)
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
			return errors.Join(err, c.impatient(ctx, name, func(ctx context.Context) error {
				return c.keeper.order(ctx, verbUnwant, name, profile)
			}))
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

// command gives a command of hinit's own to a slot.
func (c *container) command(ctx context.Context, verb, name string) error {
	return c.impatient(ctx, name, func(ctx context.Context) error { return c.keeper.command(ctx, verb, name) })
}

// impatient gives an order and waits for its result, but not for a volume that takes too long: the order stays in force.
func (c *container) impatient(ctx context.Context, name string, order func(context.Context) error) error {
	patience, cancel := context.WithTimeout(ctx, intentTime)
	defer cancel()
	err := order(patience)
	if patience.Err() == nil || ctx.Err() != nil {
		return err
	}
	c.say("[hinit] %s: %v", name, err)
	return nil
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
