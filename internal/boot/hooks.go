package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Hook is a command that runs once at boot.
type Hook struct {
	Name     string // what to call it in messages and in the timeline
	Number   int    // its place among the hooks of this boot, from 1; for the [Runner]
	Command  []string
	User     string // "": the agent's user
	Timeout  time.Duration
	Required bool
	IfExists string // it runs only when there is such a file; "": always
	ContInit bool   // it is a script of /etc/cont-init.d, which has messages of its own

	// Inputs are what its result depends on, and what it writes: paths and globs, see config.Hook. It need not run when none of
	// them has changed since its last success. Nil: it runs at every boot. Only for a hook that runs as the agent's user.
	Inputs []string
	// Unsure reports that more counts than the inputs, so that it has to run. env is its environment, d the data directory.
	Unsure func(env []string, d *fsutil.Dir) bool
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
		if h.User == cfg.Agent.User {
			hooks[i].Inputs = h.Inputs
		}
		if hooks[i].Name == skillsSync {
			hooks[i].Unsure = skillsElsewhere
		}
	}
	return hooks
}

// skillsSync is the agent's script that brings its bundled skills to the data directory.
const skillsSync = "skills_sync.py"

// skillsElsewhere reports whether skills come from places that are not among the inputs of that script.
func skillsElsewhere(env []string, d *fsutil.Dir) bool {
	for _, kv := range env {
		if name, at, _ := strings.Cut(kv, "="); at != "" && (name == "HERMES_BUNDLED_SKILLS" || name == "HERMES_OPTIONAL_SKILLS") {
			return true
		}
	}
	data, err := d.ReadFile(configFile, maxSeedSize)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		_, at, found := strings.Cut(strings.Join(strings.Fields(line), ""), "external_dirs")
		if found && at != ":[]" {
			return true
		}
	}
	return false
}

// hookName is the script's name where an interpreter runs one, or else the program's.
func hookName(command []string) string {
	if len(command) > 1 && filepath.IsAbs(command[1]) && filepath.Ext(command[1]) != "" {
		return filepath.Base(command[1])
	}
	return filepath.Base(command[0])
}

// RunHooks runs hooks in their order, each with its timeout, and returns the timeline. Hooks that m may skip run side by side where
// they follow each other and have no input beneath the data directory in common. m may be nil: then nothing is skipped. A
// failure is a warning, unless the hook is required or strict is set: then nothing more is run and the error, which wraps
// [ErrHook], says which one it was. The caller prints "fatal: stopping the container" and does.
//
// say is called by one goroutine at a time. RunHooks blocks until the runner returns; the runner, whose RunHook may be called by
// several goroutines, is trusted to heed its context.
func RunHooks(ctx context.Context, hooks []Hook, runner Runner, m *Memory, strict bool, say func(Line)) ([]Phase, error) {
	var mu sync.Mutex
	saying := func(l Line) {
		mu.Lock()
		defer mu.Unlock()
		say(l)
	}
	var phases []Phase
	for len(hooks) > 0 {
		n := m.together(hooks)
		now := slices.DeleteFunc(slices.Clone(hooks[:n]), func(h Hook) bool { return h.IfExists != "" && !exists(h.IfExists) })
		hooks = hooks[n:]
		batch := make([]Phase, len(now))
		failures := make([]error, len(now))
		var all sync.WaitGroup
		for i, h := range now {
			all.Add(1)
			guard.Go("running a boot step", func() {
				defer all.Done()
				batch[i], failures[i] = runOne(ctx, h, runner, m, strict, saying)
				batch[i].Beside = i > 0
			})
		}
		all.Wait()
		phases = append(phases, batch...)
		if ctx.Err() != nil {
			return phases, context.Cause(ctx)
		}
		for i, h := range now {
			if failures[i] != nil && (strict || h.Required) {
				return phases, fmt.Errorf("%w: %s: %w", ErrHook, h.Name, failures[i])
			}
		}
	}
	return phases, nil
}

// together is how many hooks, from the first on, can run at the same time.
func (m *Memory) together(hooks []Hook) int {
	var taken []string
	for i, h := range hooks {
		s := m.find(h)
		if s == nil {
			return max(i, 1)
		}
		for _, p := range s.volume {
			if slices.ContainsFunc(taken, func(q string) bool { return overlap(p, q) }) {
				return i
			}
		}
		taken = append(taken, s.volume...)
	}
	return len(hooks)
}

// runOne runs a hook unless there is nothing for it to do.
func runOne(ctx context.Context, h Hook, runner Runner, m *Memory, strict bool, say func(Line)) (Phase, error) {
	start := time.Now()
	if m.unchanged(ctx, h) {
		return Phase{Name: h.Name, Seconds: since(start), Skipped: true}, nil
	}
	failure := runHook(ctx, h, runner, say, strict || h.Required)
	m.ran(ctx, h, failure == nil)
	p := Phase{Name: h.Name, Seconds: since(start)}
	if failure != nil {
		p.Error = failure.Error()
	}
	return p, failure
}

// existsPatience is how long a hook's condition may take to be looked at.
const existsPatience = 2 * time.Second

// exists reports whether there is such a file. What can't be looked at, or not in time, counts as there: the hook itself
// tells what is wrong, within its timeout.
func exists(path string) bool {
	found := make(chan error, 1)
	go func() { // the path may be on a disk that hangs
		found <- blocking.Do(blocking.Foreign, func() error {
			_, err := os.Stat(path)
			return err
		})
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
		say(Line{Text: "cont-init: info: running " + path})
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
		say(Line{Warning: code != 0, Text: fmt.Sprintf("cont-init: info: %s exited %d", path, code)})
	case h.ContInit:
		say(Line{Warning: true, Text: fmt.Sprintf("cont-init: warning: %s failed: %v", path, err)})
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
