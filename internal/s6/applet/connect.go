package applet

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
)

// Supervisor is the part of PID 1 that the tools need. [dial.Client] implements it.
type Supervisor interface {
	Slot(ctx context.Context, dir string) (client.Slot, error)
	SlotControl(ctx context.Context, dir, flags string) error
	SlotWait(ctx context.Context, dir, until string) (client.Slot, error)
	ControlScanner(ctx context.Context, flags string) error
}

// errNotListening means that no supervisor watches a directory. Without an init, this is true of every directory.
var errNotListening = errors.New("supervisor not listening")

// connect connects to PID 1. path is the path for requests: dir, made absolute and clean, but with its links.
func (c *Invocation) connect(dir string) (init Supervisor, path string, err error) {
	if dir == "" {
		return nil, "", os.ErrNotExist
	}
	if path, err = filepath.Abs(dir); err != nil {
		return nil, "", err
	}
	init, err = c.Dial()
	return init, path, s6Error(dir, err)
}

func (c *Invocation) slot(ctx context.Context, dir string) (client.Slot, error) {
	init, path, err := c.connect(dir)
	if err != nil {
		return client.Slot{}, err
	}
	s, err := init.Slot(ctx, path)
	return s, s6Error(dir, err)
}

// s6Error converts an error of PID 1 about the directory dir to the error of s6.
func s6Error(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrNotAllowed):
		return os.ErrPermission
	case kindOf(err) == client.KindUnknown, kindOf(err) == client.KindUnreachable:
		return cmp.Or(checkDir(dir), errNotListening)
	}
	return dial.WithoutAction(err)
}

// checkDir returns an error if path is not a directory.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		return unix.ENOTDIR
	}
	return err
}

// kindOf returns the kind of an error of PID 1, or "" for any other error.
func kindOf(err error) client.Kind {
	if clientErr, ok := errors.AsType[*client.Error](err); ok {
		return clientErr.Kind
	}
	return ""
}
