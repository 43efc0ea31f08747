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

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Hook is a command that runs once at boot.
type Hook struct {
	Name     string // its name in messages and in the timeline
	Number   int    // its place among the hooks of this boot, from 1; for the [Runner]
	Command  []string
	User     string // "": the agent's user
	Timeout  time.Duration
	Required bool
	IfExists string // it runs only when there is such a file; "": always
	ContInit bool   // it is a script of /etc/cont-init.d, which has messages of its own

	// Inputs are paths and globs of the files that the hook reads and writes; see config.Hook. A hook is skipped when none has
	// changed since its last success. Nil: it runs at every boot. Only for hooks that run as the agent's user.
	Inputs []string
	// Unsure reports that the inputs don't tell everything, so that the hook has to run. env is its environment, d the data
	// directory.
	Unsure func(env []string, d *fsutil.Dir) bool
}

// Runner runs hooks. RunHook blocks until the hook's process group is gone; it kills the group when ctx ends, and returns the
// error. A hook ended by signal n has exit code 128+n. The error says that the hook did not run to its end; a non-zero exit code is
// not an error.
type Runner interface {
	RunHook(ctx context.Context, h Hook) (exitCode int, err error)
}

const (
	// contInitTimeout is for users' scripts; some install packages.
	contInitTimeout    = 10 * time.Minute
	rebootstrapTimeout = time.Minute
)

// ErrHook is wrapped by the error of [RunHooks].
var ErrHook = errors.New("a required boot step has failed")

// ConfiguredHooks returns the hooks of boot.hooks, the image's own included.
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

// skillsSync is the agent's script that copies its bundled skills to the data directory.
const skillsSync = "skills_sync.py"

// skillsElsewhere reports whether skills come from places that are not inputs of that script.
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

// hookName returns the script's name if an interpreter runs one, else the program's.
func hookName(command []string) string {
	if len(command) > 1 && filepath.IsAbs(command[1]) && filepath.Ext(command[1]) != "" {
		return filepath.Base(command[1])
	}
	return filepath.Base(command[0])
}

// RunHooks runs hooks in order, each with its timeout, and returns the timeline. Hooks that m may skip run in parallel where they
// follow each other and share no input beneath the data directory. m may be nil: then nothing is skipped. A failure is a warning,
// unless the hook is required or strict is set: then RunHooks stops and the error, which wraps [ErrHook], names it. The caller then
// prints "fatal: stopping the container" and stops it.
//
// say is called by one goroutine at a time, the runner possibly by several. RunHooks blocks until the runner returns.
func RunHooks(ctx context.Context, hooks []Hook, runner Runner, m *Memory, strict bool, say func(Line)) ([]client.BootStep, error) {
	var mu sync.Mutex
	saying := func(l Line) {
		mu.Lock()
		defer mu.Unlock()
		say(l)
	}
	var phases []client.BootStep
	for len(hooks) > 0 {
		n := m.together(hooks)
		now := slices.DeleteFunc(slices.Clone(hooks[:n]), func(h Hook) bool { return h.IfExists != "" && !exists(h.IfExists) })
		hooks = hooks[n:]
		batch := make([]client.BootStep, len(now))
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

// together returns how many hooks, from the first on, can run in parallel.
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

// runOne runs a hook unless it can be skipped.
func runOne(ctx context.Context, h Hook, runner Runner, m *Memory, strict bool, say func(Line)) (client.BootStep, error) {
	start := time.Now()
	if m.unchanged(ctx, h) {
		return client.BootStep{Name: h.Name, Seconds: since(start), Skipped: true}, nil
	}
	failure := runHook(ctx, h, runner, say, strict || h.Required)
	m.ran(ctx, h, failure == nil)
	p := client.BootStep{Name: h.Name, Seconds: since(start)}
	if failure != nil {
		p.Error = failure.Error()
	}
	return p, failure
}

// exists reports whether a file exists. If that can't be told in time, it returns true: the hook reports what is wrong.
func exists(path string) bool {
	_, err := statWithin(blocking.Foreign, path)
	return !errors.Is(err, fs.ErrNotExist)
}

// statPatience limits the time for one stat.
const statPatience = 2 * time.Second

// statWithin is os.Stat with a limit.
func statWithin(share blocking.Share, path string) (fs.FileInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), statPatience)
	defer cancel()
	var info fs.FileInfo
	if err := blocking.Within(ctx, share, "looking for "+path, func() (err error) {
		info, err = os.Stat(path)
		return err
	}); err != nil {
		return nil, err
	}
	return info, nil
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
