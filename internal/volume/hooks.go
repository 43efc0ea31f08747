package volume

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
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/trust"
)

// Runner runs hooks, the commands of boot steps. RunHook blocks until all processes of the hook's process group have ended. It
// kills the group at the hook's timeout, or when ctx ends. The exit code is 128+n if signal n has ended the hook. The error
// says why the hook could not run to its end; an exit code other than 0 is no error.
type Runner interface {
	RunHook(ctx context.Context, h boot.Hook) (exitCode int, err error)
}

const (
	// contInitTimeout is the timeout for scripts of users, which may install packages.
	contInitTimeout    = 10 * time.Minute
	rebootstrapTimeout = time.Minute
)

// ErrHook means that a required hook has failed.
var ErrHook = errors.New("a required boot step has failed")

// skillsSync is the agent's script that copies its bundled skills to the data directory.
const skillsSync = "skills_sync.py"

// hasOtherSkillDirs reports whether the agent's skills also come from directories that the hook skillsSync doesn't list as inputs.
// Then the hook can't be skipped.
func hasOtherSkillDirs(env []string, d *fsutil.Dir) bool {
	if proc.Getenv(env, "HERMES_BUNDLED_SKILLS")+proc.Getenv(env, "HERMES_OPTIONAL_SKILLS") != "" {
		return true
	}
	data, err := d.ReadFile(boot.ConfigFile, maxSeedSize)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
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

// RunHooks runs hooks in order, each with its timeout, and returns a step with its duration for each hook. Consecutive hooks
// run in parallel if m may skip them and they share no input in the data directory. With a nil m, no hook is skipped.
//
// The failure of a hook normally causes a warning. If the hook is required, or strict is set, RunHooks stops and returns an
// error that wraps [ErrHook] and names the hook. The caller must then print "fatal: stopping the container" and stop it.
//
// RunHooks may call say and runner from several goroutines at a time. It blocks until the runner returns.
func RunHooks(ctx context.Context, hooks []boot.Hook, runner Runner, m *StepRecord, strict bool, say func(boot.LogLine)) (phases []client.BootStep, err error) {
	for len(hooks) > 0 {
		n := m.parallelPrefixLength(hooks)
		now := slices.DeleteFunc(slices.Clone(hooks[:n]), func(h boot.Hook) bool { return h.IfExists != "" && !exists(h.IfExists) })
		hooks = hooks[n:]
		batch, failures := make([]client.BootStep, len(now)), make([]error, len(now))
		var all sync.WaitGroup
		for i, h := range now {
			all.Go(guard.WrapFunc("running a boot step", func() {
				batch[i], failures[i] = runOrSkipHook(ctx, h, runner, m, strict, say)
				batch[i].Parallel = i > 0
			}))
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

// parallelPrefixLength returns how many hooks at the start of the list can run in parallel; at least 1.
func (m *StepRecord) parallelPrefixLength(hooks []boot.Hook) int {
	var taken []string
	for i, h := range hooks {
		s := m.stepOf(h)
		if s == nil {
			return max(i, 1)
		}
		for _, p := range s.volumeInputs {
			if slices.ContainsFunc(taken, func(q string) bool { return patternsOverlap(p, q) }) {
				return i
			}
		}
		taken = append(taken, s.volumeInputs...)
	}
	return len(hooks)
}

// runOrSkipHook runs the hook h, unless the record m allows it to skip the hook.
func runOrSkipHook(ctx context.Context, h boot.Hook, runner Runner, m *StepRecord, strict bool, say func(boot.LogLine)) (client.BootStep, error) {
	start := time.Now()
	if m.isUnchanged(ctx, h) {
		return client.BootStep{Name: h.Name, Seconds: boot.SecondsSince(start), Skipped: true}, nil
	}
	failure := runHook(ctx, h, runner, say, strict || h.Required)
	m.recordHookEnd(ctx, h, failure == nil)
	p := client.BootStep{Name: h.Name, Seconds: boot.SecondsSince(start)}
	if failure != nil {
		p.Error = failure.Error()
	}
	return p, failure
}

func exists(path string) bool {
	_, err := boot.StatWithin(blocking.Foreign, boot.ShortTimeout, path)
	return !errors.Is(err, fs.ErrNotExist)
}

// runHook runs one hook and reports its failure. For a cont-init script, it prints the same lines as the image's own init did. The
// argument fatal says that a failure ends the boot.
func runHook(ctx context.Context, h boot.Hook, runner Runner, say func(boot.LogLine), fatal bool) error {
	path := h.Command[0]
	if h.ContInit {
		say(boot.LogLine{Text: "cont-init: info: running " + path})
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
		say(boot.LogLine{Warning: code != 0, Text: fmt.Sprintf("cont-init: info: %s exited %d", path, code)})
	case h.ContInit:
		say(boot.LogLine{Warning: true, Text: fmt.Sprintf("cont-init: warning: %s failed: %v", path, err)})
	case failure != nil:
		if err != nil {
			say(boot.Warning(fmt.Sprintf("%s: %v", h.Name, err)))
		}
		text := h.Name + " failed"
		if !fatal {
			text += "; continuing"
		}
		say(boot.Warning(text))
	}
	return failure
}

// replacedScripts are the image's boot scripts whose work hinit does itself.
var replacedScripts = []string{"01-hermes-setup", "015-supervise-perms", "02-reconcile-profiles"}

// ImageHook returns the agent's own boot script as a hook that runs as root. The script docker/remove-s6 preserves it in the
// image.
func ImageHook() (boot.Hook, error) {
	script := filepath.Join(config.ImageDir, replacedScripts[0])
	if _, err := os.Stat(script); err != nil {
		return boot.Hook{}, fmt.Errorf("cannot run the boot script of the image: %w; build the image with this docker/remove-s6, or leave HINIT_BOOT unset", err)
	}
	return contInitHook(script), nil
}

func contInitHook(path string) boot.Hook {
	return boot.Hook{Name: path, Command: []string{path}, User: "root", Timeout: contInitTimeout, ContInit: true}
}

// ContInitHooks returns the scripts in dir as hooks that run as root, in byte order of their names. It leaves out scripts that
// hinit replaces, scripts that the agent's user could change, directories, and files that can't be executed. lines are messages
// about skipped scripts. A missing directory has no scripts. ContInitHooks blocks on dir.
func ContInitHooks(dir string, agent *fsutil.Actor) (hooks []boot.Hook, lines []boot.LogLine) {
	skip := func(path, format string, args ...any) {
		lines = append(lines, boot.LogLine{Warning: true, Text: fmt.Sprintf("cont-init: warning: skipping %s: "+format, append([]any{path}, args...)...)})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			skip(dir, "%v", boot.WithoutPath(err))
		}
		return nil, lines
	}
	if violation := howAgentCanChange(dir, agent); violation != nil && len(entries) > 0 {
		skip(dir, "the agent's user can write it, and root would run what is in it; give it to root or mount it read-only (%s)", violation)
		return nil, lines
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		violation := howAgentCanChange(path, agent)
		switch {
		case slices.Contains(replacedScripts, e.Name()):
			lines = append(lines, boot.LogLine{Text: "cont-init: info: skipping " + path + ": hinit does its work"})
		case err != nil:
			skip(path, "%v", boot.WithoutPath(err))
		case info.IsDir():
		case violation != nil && e.Type()&fs.ModeSymlink != 0:
			skip(path, "it is a link, and the agent's user can change what root would run: %s", violation)
		case !info.Mode().IsRegular(), info.Mode().Perm()&0o111 == 0:
			skip(path, "it cannot be executed; chmod +x it")
		case violation != nil:
			skip(path, "the agent's user can write it, and root would run it; give it to root or mount it read-only")
		default:
			hooks = append(hooks, contInitHook(path))
		}
	}
	return hooks, lines
}

// howAgentCanChange says how the agent's user could change the file at path, also through links. It returns nil if the user
// can't change the file, or if hinit isn't root.
func howAgentCanChange(path string, agent *fsutil.Actor) *trust.Violation {
	if !agent.SwitchesIdentity() {
		return nil
	}
	id := agent.Identity()
	// a file that can't be examined can't be executed either
	violation, _ := trust.Check(path, trust.NotChangeableBy(id.UID, append([]uint32{id.GID}, id.Groups...)))
	return violation
}
