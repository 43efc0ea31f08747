package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"hinit/internal/config"
)

// Hook is a command that runs once at boot.
type Hook struct {
	Name     string // what to call it in messages and in the timeline
	Command  []string
	User     string // "": the agent's user
	Timeout  time.Duration
	Required bool
	IfExists string // it runs only when there is such a file; "": always
	ContInit bool   // it is a script of /etc/cont-init.d, which has messages of its own
}

// Runner runs hooks. RunHook blocks until the hook has ended and everything it started in its process group is gone; it
// kills them when ctx ends, and returns the error then. A hook ended by signal n has exit code 128+n. The error says that
// the hook could not be run to its end, and a non-zero exit code is none.
type Runner interface {
	RunHook(ctx context.Context, h Hook) (exitCode int, err error)
}

const (
	// contInitTimeout is what a user's script may take; some install packages.
	contInitTimeout    = 10 * time.Minute
	rebootstrapTimeout = time.Minute
)

// ErrHook is wrapped by the error of [RunHooks].
var ErrHook = errors.New("a required boot step has failed")

// ConfiguredHooks are those of boot.hooks, the image's own included.
func ConfiguredHooks(cfg *config.Config) []Hook {
	hooks := make([]Hook, len(cfg.Boot.Hooks))
	for i, h := range cfg.Boot.Hooks {
		hooks[i] = Hook{
			Name: hookName(h.Command), Command: h.Command, User: h.User, Timeout: h.Timeout, Required: h.Required, IfExists: h.IfExists,
		}
	}
	return hooks
}

// hookName is the script's name where an interpreter runs one, or else the program's.
func hookName(command []string) string {
	if len(command) > 1 && filepath.IsAbs(command[1]) && filepath.Ext(command[1]) != "" {
		return filepath.Base(command[1])
	}
	return filepath.Base(command[0])
}

// RunHooks runs hooks one after the other, each with its timeout, and returns the timeline of those that ran. A failure is a
// warning, unless the hook is required or strict is set: then nothing more is run and the error, which wraps [ErrHook], says
// which one it was. The caller prints "fatal: stopping the container" and does.
//
// say is called in the caller's goroutine. RunHooks blocks until the runner returns; the runner is trusted to heed its
// context.
func RunHooks(ctx context.Context, hooks []Hook, runner Runner, strict bool, say func(Line)) ([]Phase, error) {
	var phases []Phase
	for _, h := range hooks {
		if h.IfExists != "" {
			if !exists(h.IfExists) {
				continue
			}
		}
		start := time.Now()
		failure := runHook(ctx, h, runner, say, strict || h.Required)
		p := Phase{Name: h.Name, Seconds: since(start)}
		if failure != nil {
			p.Error = failure.Error()
		}
		phases = append(phases, p)
		if ctx.Err() != nil {
			return phases, context.Cause(ctx)
		}
		if failure != nil && (strict || h.Required) {
			return phases, fmt.Errorf("%w: %s: %w", ErrHook, h.Name, failure)
		}
	}
	return phases, nil
}

// existsPatience is how long a hook's condition may take to be looked at.
const existsPatience = 2 * time.Second

// exists reports whether there is such a file. What can't be looked at, or not in time, counts as there: the hook itself
// tells what is wrong, within its timeout.
func exists(path string) bool {
	found := make(chan error, 1)
	go func() { // the path may be on a disk that hangs
		_, err := os.Stat(path)
		found <- err
	}()
	select {
	case err := <-found:
		return !errors.Is(err, fs.ErrNotExist)
	case <-time.After(existsPatience):
		return true
	}
}

func runHook(ctx context.Context, h Hook, runner Runner, say func(Line), fatal bool) error {
	path := h.Command[0]
	if h.ContInit {
		say(Line{Stderr: true, Text: "cont-init: info: running " + path})
	}
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.Timeout, fmt.Errorf("it took longer than %s", h.Timeout))
		defer cancel()
	}
	code, err := runner.RunHook(ctx, h)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	failure := err
	if err == nil && code != 0 {
		failure = fmt.Errorf("exit code %d", code)
	}
	switch {
	case h.ContInit && err == nil:
		say(Line{Stderr: true, Warning: code != 0, Text: fmt.Sprintf("cont-init: info: %s exited %d", path, code)})
	case h.ContInit:
		say(Line{Stderr: true, Warning: true, Text: fmt.Sprintf("cont-init: warning: %s failed: %v", path, err)})
	case failure != nil:
		if err != nil {
			say(warning(fmt.Sprintf("%s: %v", h.Name, err)))
		}
		if fatal {
			say(warning(h.Name + " failed"))
			break
		}
		say(warning(h.Name + " failed; continuing"))
	}
	return failure
}
