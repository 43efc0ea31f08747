package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/boot/lookup"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/procusage"
	"hinit/internal/web"
)

// source is the connection to this container's hinit. It also finds the data that the program reads without hinit: /proc, the
// logs, and the forwarder's counters.
type source struct {
	*dial.Client
	env func(string) (string, bool)
}

func newSource(env func(string) (string, bool)) *source { return &source{cmdline.Here(env), env} }

// needToken returns an error if the page must not be served without a token, because isolated profiles could read the logs of
// other profiles on it. It returns nil while hinit has not been found, because the page is empty then.
func (h *source) needToken() error {
	if h.Reach() != nil && h.Socket() == "" {
		return nil
	}
	list, err := cmdline.ReadIsolated(h.Socket())
	switch {
	case err != nil:
		return fmt.Errorf("isolated profiles may be able to read the logs of others on it, and there is no token: %w; or %s", err, tokenAdvice)
	case list != "":
		return errors.New("isolated profiles could read the logs of others on it, and there is no token; " + tokenAdvice)
	}
	return nil
}

// procPath returns the path of a /proc that shows hinit's processes, or "" if there is none.
func (h *source) procPath(i client.Init) string { return procusage.Root(h.Socket(), i.PID) }

// logReader returns the identity with which this program opens hinit's log files.
func (h *source) logReader(i client.Init) (*fsutil.Actor, error) {
	return lookup.LogReader(i.Plain != "", h.env)
}

// programsBeside returns functions that run hinit-sandbox and hinit-kanban, which report sandboxes and task boards. These two
// programs are in the same directory as this program, and run as the same user. For root, the function for boards is missing,
// because root must not open the agent's files.
func programsBeside(env func(string) (string, bool)) web.Programs {
	b := web.Programs{Sandboxes: func(ctx context.Context, home string) ([]byte, error) {
		if _, err := os.Stat(dial.SandboxSocket(env)); err != nil {
			return nil, fs.ErrNotExist // no sandbox service runs here
		}
		return programOutput(ctx, home, "hinit-sandbox", "ls", "--json")
	}}
	if os.Geteuid() != 0 {
		b.Boards = func(ctx context.Context, home string) ([]byte, error) {
			return programOutput(ctx, home, "hinit-kanban", "stats", "--all")
		}
	}
	return b
}

// maxOutput is the maximum number of bytes that programOutput reads from a program.
const maxOutput = 8 << 20

// programOutput runs one of hinit's programs for the data directory home, and returns its output. If the program is not
// installed, the error is [fs.ErrNotExist].
func programOutput(ctx context.Context, home, name string, args ...string) ([]byte, error) {
	program, err := cmdline.Beside(name)
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	if home != "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	out, errs, x, err := proc.Output(ctx, proc.Spec{Path: program, Argv: append([]string{name}, args...), Env: env}, maxOutput)
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
