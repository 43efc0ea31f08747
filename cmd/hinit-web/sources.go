package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/account"
	"hinit/internal/boot/lookup"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/usage"
	"hinit/internal/web"
)

// hinit asks this container's hinit, and reads the other data that this program shows.
type hinit struct {
	*dial.Client
	env func(string) (string, bool)
}

func newHinit(env func(string) (string, bool)) *hinit {
	return &hinit{cmdline.Here(env), env}
}

// isolates reports whether hinit has isolated profiles. It reads the list that hinit writes for the exec shim. If the list can't be
// read, it returns true.
func (h *hinit) isolates() bool {
	if h.Reach() != nil && h.Socket() == "" { // no hinit was found yet, so there is nothing to show
		return false
	}
	info, err := os.Stat(filepath.Join(filepath.Dir(h.Socket()), account.Isolated))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return info.Size() > 0
}

// proc returns the path of the /proc that shows hinit's processes, or "".
func (h *hinit) proc(i client.Init) string { return usage.Root(h.Socket(), i.PID) }

// logsAs returns the identity with which this program opens hinit's log files.
func (h *hinit) logsAs(i client.Init) (*fsutil.Actor, error) {
	return lookup.LogReader(i.Plain != "", h.env)
}

// beside returns the programs that read boards and sandboxes. They are installed beside this program, and run as its user. Root gets
// no boards, because root does not open the agent's files.
func beside(env func(string) (string, bool)) web.Beside {
	b := web.Beside{Sandboxes: func(ctx context.Context, home string) ([]byte, error) {
		if _, err := os.Stat(dial.SandboxSocket(env)); err != nil {
			return nil, fs.ErrNotExist // no sandbox service runs here
		}
		return output(ctx, home, "hinit-sandbox", "ls", "--json")
	}}
	if os.Geteuid() != 0 {
		b.Boards = func(ctx context.Context, home string) ([]byte, error) {
			return output(ctx, home, "hinit-kanban", "stats", "--all")
		}
	}
	return b
}

// mostOutput limits the bytes that are read from a program's output.
const mostOutput = 8 << 20

// output runs a program of hinit for a home and returns its output. The error is [fs.ErrNotExist] if the program is not installed.
func output(ctx context.Context, home, name string, args ...string) ([]byte, error) {
	program, err := cmdline.Beside(name)
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	if home != "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	out, errs, x, err := proc.Output(ctx, proc.Spec{Path: program, Argv: append([]string{name}, args...), Env: env}, mostOutput)
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cannot ask %s: it does not answer", name)
	case x.Code != 0 || x.Signal != 0:
		why, _, _ := bytes.Cut(errs, []byte{'\n'})
		return nil, fmt.Errorf("cannot ask %s: %s", name, why)
	}
	return out, nil
}
