package applet

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"hinit/client"
	"hinit/internal/s6"
)

// Supervisor is what the tools need of PID 1. [client.Client] has it.
type Supervisor interface {
	Slots(ctx context.Context) ([]client.Slot, error)
	Slot(ctx context.Context, dir string) (client.Slot, error)
	SlotControl(ctx context.Context, dir, flags string) error
	SlotWait(ctx context.Context, dir, until string) (client.Slot, error)
	SlotScan(ctx context.Context, flags string) error
	Lifecycle
}

// errNotListening is the answer for a directory that exists and is no slot, and for all of them when there is no init.
var errNotListening = errors.New("supervisor not listening")

// absolute is the directory as PID 1 is asked for it: lexically clean, links and all.
func absolute(dir string) (string, error) {
	if dir == "" {
		return "", os.ErrNotExist
	}
	return filepath.Abs(dir)
}

// reach connects to PID 1 for a service directory and returns how PID 1 is asked for it.
func (c *Call) reach(dir string) (init Supervisor, path string, err error) {
	if path, err = absolute(dir); err != nil {
		return nil, "", err
	}
	init, err = c.Dial()
	return init, path, missing(dir, err)
}

// slot asks for the state of a service directory.
func (c *Call) slot(ctx context.Context, dir string) (client.Slot, error) {
	init, path, err := c.reach(dir)
	if err != nil {
		return client.Slot{}, err
	}
	s, err := init.Slot(ctx, path)
	return s, missing(dir, err)
}

// missing turns "there is no such slot" and "there is no init" into what s6 finds then: no directory, or nobody listening.
func missing(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrNotAllowed):
		return os.ErrPermission
	case isBusy(err):
		return reasonOf(err)
	case errors.Is(err, client.ErrUnknown), errors.Is(err, client.ErrUnreachable):
		if _, err := os.Stat(dir); err != nil {
			return err
		}
		return errNotListening
	}
	return reasonOf(err)
}

// reasonOf is what PID 1 said, without what it was asked.
func reasonOf(err error) error {
	if said := (*client.Error)(nil); errors.As(err, &said) {
		return errors.New(said.Message)
	}
	return err
}

// isBusy reports whether PID 1 is there and has no place for another call.
func isBusy(err error) bool {
	said := (*client.Error)(nil)
	return errors.As(err, &said) && said.Kind == client.KindBusy
}

// isPermanent reports whether PID 1 said that a state will not be reached.
func isPermanent(err error) bool {
	said := (*client.Error)(nil)
	return errors.As(err, &said) && said.Kind == client.KindPermanent
}

// status is a slot in the words of s6.
func status(s client.Slot) s6.Status {
	return s6.Status{
		Up: s.Up, WantUp: s.WantUp, NormallyUp: s.NormallyUp, Ready: s.Ready, Paused: s.Paused, Finishing: s.Finishing,
		Started: s.Started, PID: s.PID, PGID: s.PGID, ExitCode: s.ExitCode, Signal: s.Signal, Since: s.Since, ReadySince: s.ReadySince,
	}
}
