package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"hinit/internal/account"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/isolation/peer"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
	"hinit/sandbox/policy"
)

// serve runs the command hinit sandbox serve, and returns the exit code.
func (p Program) serve(args []string) int {
	debug.SetGCPercent(40) // the service mostly waits, so memory matters more than processor time
	set, code, ok := readSettings(args, os.LookupEnv, os.Stdout)
	if !ok {
		return code
	}
	opts, warnings, err := sandbox.FromEnv(os.LookupEnv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cmdline.WrongUsage
	}
	if len(set.policy.Images) == 0 {
		set.policy.Images = []string{opts.Image}
	}
	if len(set.policy.Roots) == 0 {
		set.policy.Roots = []string{opts.Home}
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "[hinit-sandbox] warning:", w)
	}
	ctx, stop := cmdline.Interruptible()
	defer stop()
	if err := p.serveUntil(ctx, set, opts, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "[hinit-sandbox]", err)
		return cmdline.Failed
	}
	return cmdline.Done
}

// serveUntil runs the service until the context ends. It first waits until the engine answers. log receives messages for the
// operator.
func (p Program) serveUntil(ctx context.Context, set settings, opts sandbox.Options, log *os.File) error {
	engine, err := p.Engine(opts.Docker)
	if err != nil {
		return err
	}
	defer engine.Close()
	say := func(format string, args ...any) { fmt.Fprintf(log, "[hinit-sandbox] "+format+"\n", args...) }
	places, err := awaitEngine(ctx, engine, say)
	if err != nil {
		return err
	}
	helper, err := sandbox.FindHelper(opts.Helper)
	if err != nil {
		return fmt.Errorf("cannot serve sandboxes: %w; put it there, or set HINIT_SANDBOX_HELPER", err)
	}
	var agent *account.User
	if found, err := account.Lookup("", set.user); err == nil && set.user != "" {
		agent = &found
	}
	h := &service{
		agent: agent,

		engine: engine, opts: opts, settings: set, places: places, gate: &policy.Gate{Program: helper}, log: say, gateways: newGatewayLookup(os.LookupEnv),
		tenants: map[tenantKey]*tenant{}, began: time.Now(),
		changed: make(chan struct{}, 1),
	}
	h.releaseTimer = time.AfterFunc(releaseAfter, guard.Func("releasing memory", h.releaseMemory))
	defer h.releaseTimer.Stop()
	if err := h.prepareState(); err != nil {
		return err
	}
	l, err := control.Listen(set.socket)
	if err != nil {
		return err
	}
	server := &daemon.Server{Handle: h.handle, Allow: callerRule(agent, isolates), Panicked: func(fault any, stack []byte) {
		say("a request has panicked, and the service goes on: %v\n%s", fault, stack)
	}}
	root, err := h.gate.AskRoot(ctx, engine, set.policy)
	if err != nil {
		return err
	}
	say("%s", root)
	if err := writeNote(set.socket+".root", root.String()+"\n"); err != nil {
		say("cannot leave word for hinit doctor: %v", err)
	}
	if root == policy.RootCaller {
		say("%s", policy.RootWays)
	}
	say("serves sandboxes on %s, of images %q with mounts below %q", set.socket, set.policy.Images, set.policy.Roots)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keeping.Go(func() { h.keepSandboxes(ctx) })
	return server.Serve(ctx, l) // the sandboxes keep running
}

// writeNote writes a file that hinit doctor reads. It replaces any file of that name.
func writeNote(path, text string) error {
	dir, err := fsutil.OpenNoLink(filepath.Dir(path), fsutil.Self())
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Replace(filepath.Base(path), []byte(text), fsutil.ReplaceOptions{Mode: 0o644})
}

// engineRetryTime is the pause before the service asks a silent engine again.
const engineRetryTime = 2 * time.Second

// awaitEngine waits until the engine answers, because hinit may start before the engine. If the service ended instead of waiting,
// hinit would only start it again.
func awaitEngine(ctx context.Context, engine sandbox.Engine, say func(string, ...any)) (policy.PathTranslator, error) {
	for told := false; ; told = true {
		places, err := policy.NewPathTranslator(ctx, engine)
		if err == nil {
			if _, err = engine.Info(ctx); err == nil {
				return places, nil
			}
		}
		if !told {
			say("waits for the container engine: %v", err)
		}
		if !pause.For(ctx, engineRetryTime) {
			return places, fmt.Errorf("cannot serve sandboxes: %w", err)
		}
	}
}

// callerRule returns a function that returns an error if a caller may not use the service. Root, this process's user and the
// agent's user may use it. An isolated profile may not, because a mount would give it access to every file of the agent. The
// function isolates reports whether the configuration isolates any profile.
func callerRule(agent *account.User, isolates func() bool) func(daemon.Peer) error {
	self := os.Geteuid()
	return func(p daemon.Peer) error {
		if p.UID != 0 && int(p.UID) != self && (agent == nil || p.UID != agent.UID) {
			return fmt.Errorf("uid %d is not allowed to; only root and the agent's user are", p.UID)
		}
		// A PID of 0 is a process of another PID namespace. Whether it is isolated is unknown.
		if p.UID != 0 && (p.PID == 0 || peer.IsIsolated(p.Conn, p.PID)) && isolates() {
			return errors.New("the isolation of this process keeps it from them; they can mount the files of all profiles")
		}
		return nil
	}
}

// isolates reports whether the configuration isolates any profile. It is true if the configuration can't be read.
func isolates() bool {
	cfg, err := config.Load(config.Options{})
	return err != nil || cfg.AnyIsolation()
}
