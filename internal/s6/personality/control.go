package personality

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/gateways/orders"
	"hinit/internal/s6/formats"
	"hinit/internal/s6/scandir"
	"hinit/profiles"
	"hinit/supervisor"
)

// intentTimeout is how long a command to a slot waits for the record of the operator's intent on the data volume. After this
// time, hinit only confirms the receipt of the command. s6 promises no more (contract of s6, section 1).
const intentTimeout = 2 * time.Second

// Slots implements control.Slots. It returns nil if the scan directory doesn't answer before ctx ends.
func (s *S6) Slots(ctx context.Context) []client.Slot {
	var out []client.Slot
	err := blocking.Wait(ctx, "looking at the scan directory", func() error {
		snap := s.host.Snapshot()
		services := make(map[string]*supervisor.Service, len(snap.Services))
		for _, v := range snap.Services {
			services[v.Name] = v
		}
		for _, slot := range s.Scanner.Slots() {
			if v := services[slot.Name]; v != nil || slot.IsFixed() { // a slot whose service is not registered isn't shown
				out = append(out, s.clientSlot(slot, v))
			}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return out
}

// Slot implements control.Slots.
func (s *S6) Slot(ctx context.Context, dir string) (client.Slot, error) {
	var out client.Slot
	err := blocking.Wait(ctx, "looking for a service directory", func() error {
		slot, err := s.Find(ctx, dir)
		if err != nil {
			return err
		}
		v := s.host.Snapshot().Find(slot.Name)
		if v == nil && !slot.IsFixed() {
			return &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("%s is not supervised", slot.Name)}
		}
		out = s.clientSlot(slot, v)
		return nil
	})
	if err != nil {
		return client.Slot{}, err
	}
	return out, nil
}

// clientSlot returns a slot in the form for the programs of s6. A fixed slot has no service, so hinit appears as its process.
func (s *S6) clientSlot(slot *scandir.Slot, v *supervisor.Service) client.Slot {
	if slot.IsFixed() {
		v = &supervisor.Service{Name: slot.Name, Want: supervisor.WantUp, Started: true, Run: 1, PID: os.Getpid(), ProcessSince: s.startedAt}
	}
	return clientSlotOfService(v, slot.Dir, slot.NormallyUp())
}

// clientSlotOfService returns a service in the form for the programs of s6. A parked or failed service won't start again by
// itself, so it appears as wanted down.
func clientSlotOfService(v *supervisor.Service, dir string, normallyUp bool) client.Slot {
	s := client.Slot{
		Name: v.Name, Dir: dir, NormallyUp: normallyUp, Up: v.PID != 0, EverStarted: v.Started, Notifies: v.ReportsReadiness,
		WantUp:           v.Want == supervisor.WantUp && !v.StaysDown,
		PermanentFailure: v.StaysDown, RunNumber: v.Run, PID: v.PID, PGID: v.PID, ExitCode: -1,
		Since: v.ProcessSince.UTC(), ReadySince: v.ReadySince.UTC(),
	}
	if s.Up {
		s.Ready, s.Paused = v.Ready && v.ReportsReadiness, v.Paused
		if !s.Ready {
			s.ReadySince = time.Time{}
		}
		return s
	}
	s.Finishing = v.State == supervisor.Stopping || v.State == supervisor.Killing || v.State == supervisor.Finishing
	if x := v.LastExit; x != nil {
		s.ExitCode, s.Signal = x.Code, x.Signal
	}
	return s
}

// SlotControl implements control.Slots. It returns when ctx ends, but hinit still carries out the commands.
func (s *S6) SlotControl(ctx context.Context, dir, letters string) error {
	return blocking.Wait(ctx, "what the service was asked for", func() error {
		ctx := context.WithoutCancel(ctx)
		slot, err := s.Find(ctx, dir)
		if err != nil || slot.IsFixed() {
			return err
		}
		for i := 0; i < len(letters) && err == nil; i++ {
			err = s.carryOutLetter(ctx, slot, letters[i])
		}
		return err
	})
}

// carryOutLetter carries out one command letter of s6-svc. For hinit's own services, it also records the operator's intent. For
// foreign services, it follows s6.
func (s *S6) carryOutLetter(ctx context.Context, slot *scandir.Slot, letter byte) error {
	name, native := slot.Name, slot.IsNative()
	switch letter {
	case 'u', 'U':
		if native {
			return s.recordIntent(ctx, client.VerbStart, name)
		}
		if letter == 'U' {
			if err := slot.SetDown(false); err != nil {
				return err
			}
		}
		if err := s.Refresh(ctx, name); err != nil {
			return err
		}
		return s.host.Do(ctx, supervisor.Start{Name: name})
	case 'd', 'D':
		if native {
			return s.recordIntent(ctx, client.VerbStop, name)
		}
		err := s.host.Do(ctx, supervisor.Stop{Name: name})
		if letter == 'D' {
			err = errors.Join(err, slot.SetDown(true))
		}
		return err
	case 'o':
		if err := s.host.CheckMayStart(name); err != nil {
			return err
		}
		return s.host.Do(ctx, supervisor.RunOnce{Name: name})
	case 'O':
		return s.host.Do(ctx, supervisor.StayDown{Name: name})
	case 'Q':
		err := s.host.Do(ctx, supervisor.StayDown{Name: name})
		if _, gateway := profiles.SlotProfile(name); gateway && native {
			return errors.Join(err, s.recordIntent(ctx, orders.StayDown, name))
		}
		return errors.Join(err, slot.SetDown(true))
	case 'p', 'P':
		return s.host.Do(ctx, supervisor.Pause{Name: name, Group: letter == 'P'})
	case 'c', 'C':
		return s.host.Do(ctx, supervisor.Continue{Name: name, Group: letter == 'C'})
	case 'x':
		return nil
	case 'l':
		return s.host.Do(ctx, supervisor.SignalMain{Name: name, Signal: slot.ReloadSignal()})
	case 't', 'r':
		v := s.host.Snapshot().Find(name)
		if native && v != nil && v.State == supervisor.Up && v.Want == supervisor.WantUp {
			// A gateway answers this signal with an exit code that looks like a failure, so restart it through the supervisor.
			return s.host.Do(ctx, supervisor.Restart{Name: name})
		}
		signal := int(unix.SIGTERM)
		if letter == 'r' {
			signal = 0 // 0 stands for the stop signal of the service
		}
		return s.host.Do(ctx, supervisor.SignalMain{Name: name, Signal: signal})
	}
	signal, group := formats.SvcSignal(letter)
	if signal == 0 {
		return &client.Error{Kind: client.KindBadRequest, Message: fmt.Sprintf("%q is no command of s6-svc", letter)}
	}
	return s.host.Do(ctx, supervisor.SignalMain{Name: name, Signal: signal, Group: group})
}

// recordIntent carries out an order that changes one of hinit's services, and records the operator's intent. After intentTimeout
// it prints a message and returns nil, and the intent is recorded later.
func (s *S6) recordIntent(ctx context.Context, verb client.Verb, name string) error {
	patience, cancel := context.WithTimeout(ctx, intentTimeout)
	defer cancel()
	err := s.host.Command(patience, verb, name)
	if patience.Err() == nil || ctx.Err() != nil {
		return err
	}
	s.host.Say("%s: %v", name, err)
	return nil
}

// ControlScanner implements control.Slots. It carries out the command letters of s6-svscanctl.
func (s *S6) ControlScanner(ctx context.Context, letters string) error {
	for _, letter := range letters {
		var err error
		switch letter {
		case 'a', 'h':
			err = s.Scan(ctx)
		case 'n', 'N':
			err = s.HandleRemoved(ctx)
		case 't', 'q', 'b', 'i':
			err = s.host.Do(ctx, supervisor.Shutdown{Reason: "s6-svscanctl asked for it"})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
