package program

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"hinit/client/dial"
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

// serve runs the verb serve until a signal ends it, and returns the exit code.
func (p Program) serve(args []string, out io.Writer) int {
	debug.SetGCPercent(40) // Save memory at the cost of processor time, because the service mostly waits.
	set, code, ok := readSettings(args, os.LookupEnv, out)
	if !ok {
		return code
	}
	opts, warnings, err := sandbox.FromEnv(os.LookupEnv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cmdline.ExitUsage
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
	ctx, stop := cmdline.InterruptibleContext()
	defer stop()
	if err := p.serveUntil(ctx, set, opts, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "[hinit-sandbox]", err)
		return cmdline.ExitFailed
	}
	return cmdline.ExitDone
}

// serveUntil runs the service until ctx ends. It first waits until the engine answers. log receives messages for the operator.
func (p Program) serveUntil(ctx context.Context, set settings, opts sandbox.Options, log *os.File) error {
	engine, err := p.Engine(opts.EngineAddress)
	if err != nil {
		return err
	}
	defer engine.Close()
	say := func(format string, args ...any) { fmt.Fprintf(log, "[hinit-sandbox] "+format+"\n", args...) }
	places, err := awaitEngine(ctx, engine, say)
	if err != nil {
		return err
	}
	helper, err := sandbox.FindHelper(opts.HelperPath)
	if err != nil {
		return fmt.Errorf("cannot serve sandboxes: %w; put it there, or set HINIT_SANDBOX_HELPER", err)
	}
	h := &service{
		engine: engine, opts: opts, settings: set, translator: places, gate: &policy.Gate{Program: helper}, log: say, gateways: newGatewayLookup(os.LookupEnv),
		agent: findAgent(set.user, say), tenants: map[tenantKey]*tenant{}, startedAt: time.Now(), scanRequests: make(chan struct{}, 1),
	}
	h.releaseTimer = time.AfterFunc(releaseAfter, guard.WrapFunc("releasing memory", h.releaseMemory))
	defer h.releaseTimer.Stop()
	if err := h.prepareState(); err != nil {
		return err
	}
	root, err := h.gate.DetermineRootMode(ctx, engine, set.policy)
	if err != nil {
		return err
	}
	return h.listen(ctx, root)
}

// findAgent returns the agent's user, or nil if the name is empty or unknown. Without an agent's user, only root and the
// service's own user may use sandboxes.
func findAgent(name string, say func(string, ...any)) *account.User {
	if name == "" {
		return nil
	}
	found, err := account.Lookup("", name)
	if err != nil {
		say("cannot serve the agent: %v; name its user with --user or HINIT_SANDBOX_USER", err)
		return nil
	}
	return &found
}

// listen serves requests on the socket until ctx ends.
func (h *service) listen(ctx context.Context, root policy.RootMode) error {
	socket := h.settings.socket
	l, err := control.Listen(socket)
	if err != nil {
		return err
	}
	h.reportRoot(root)
	h.log("serves sandboxes on %s, of images %q with mounts below %q", socket, h.settings.policy.Images, h.settings.policy.Roots)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keeping.Go(func() { h.cleanUp(ctx) })
	server := &daemon.Server{Handle: h.handle, CheckPeer: newCallerCheck(h.agent, isolatesAnyProfile), Panicked: func(fault any, stack []byte) {
		h.log("a request has panicked, and the service continues: %v\n%s", fault, stack)
	}}
	return server.Serve(ctx, l) // The sandboxes keep running after the return.
}

// reportRoot tells the operator what root in a sandbox can do. It writes to the log, and to a file beside the socket that
// `hinit doctor` reads.
func (h *service) reportRoot(root policy.RootMode) {
	h.log("%s", root)
	_, err := fsutil.WithParentDir(h.settings.socket+".root", nil, func(d *fsutil.Dir, name string) (bool, error) {
		return true, d.Replace(name, []byte(root.String()+"\n"), fsutil.ReplaceOptions{Mode: 0o644})
	})
	if err != nil {
		h.log("cannot write the file for hinit doctor: %v", err)
	}
	if root == policy.RootCaller {
		h.log("%s", policy.RootAdvice)
	}
}

// engineRetryInterval is the pause between two tries to reach an engine that does not answer.
const engineRetryInterval = 2 * time.Second

// awaitEngine waits until the engine answers, because hinit may start before the engine. It returns no error in the meantime:
// the service would end, and hinit would only start it again.
func awaitEngine(ctx context.Context, engine sandbox.Engine, say func(string, ...any)) (policy.PathTranslator, error) {
	for reported := false; ; reported = true {
		places, err := policy.NewPathTranslator(ctx, engine)
		if err == nil {
			if _, err = engine.Info(ctx); err == nil {
				return places, nil
			}
		}
		if !reported {
			say("waits for the container engine: %v", err)
		}
		if !pause.For(ctx, engineRetryInterval) {
			return places, fmt.Errorf("cannot serve sandboxes: %w", err)
		}
	}
}

// newCallerCheck returns a function that returns an error if a caller may not use the service. Root, this process's user and the
// agent's user may use it. An isolated profile may not, because a mount would give it every file of the agent. isolates
// reports whether the configuration isolates any profile.
func newCallerCheck(agent *account.User, isolates func() bool) func(daemon.Peer) error {
	self := os.Geteuid()
	return func(p daemon.Peer) error {
		if p.UID != 0 && int(p.UID) != self && (agent == nil || p.UID != agent.UID) {
			return fmt.Errorf("uid %d is not allowed to; only root and the agent's user are", p.UID)
		}
		// A PID of 0 means that the process is in another PID namespace, so it may belong to an isolated profile.
		if p.UID != 0 && (p.PID == 0 || peer.IsIsolated(p.Conn, p.PID)) && isolates() {
			return errors.New("the isolation of this process keeps it from them; they can mount the files of all profiles")
		}
		return nil
	}
}

// isolatesAnyProfile reports whether the configuration isolates any profile. If the configuration can't be read, it returns
// true to be safe.
func isolatesAnyProfile() bool {
	cfg, err := config.Load(config.Options{})
	return err != nil || cfg.AnyIsolated()
}

// settings are the values that the operator sets for the service, by flags or environment variables.
type settings struct {
	socket, state, user, rootMode string
	memory                        int64 // memory limit of a sandbox in MB
	policy                        policy.Policy
}

// defineFlags defines the flags of `hinit sandbox serve`.
func (s *settings) defineFlags(f *flag.FlagSet) {
	p := &s.policy
	// The first use replaces the default, and each flag replaces the whole list.
	words := func(list *[]string) func(string) error {
		return func(text string) error { *list = nil; return (*cmdline.ListFlag)(list).Set(text) }
	}
	f.StringVar(&s.socket, "socket", dial.SandboxSocket(os.LookupEnv), "Unix `SOCKET` on which the service listens")
	f.StringVar(&s.state, "state", "/run/hinit-sandbox", "`DIRECTORY` for the state of the service; only root can read it")
	f.StringVar(&s.user, "user", "hermes", "`USER` that may use the service, besides root")
	f.Func("images", "`IMAGES` that sandboxes may have: patterns with * and ?, separated by commas; a pattern without a tag allows every tag; if empty, the image of TERMINAL_DOCKER_IMAGE", words(&p.Images))
	f.Func("roots", "`DIRECTORIES` that contain the permitted sources of mounts, separated by commas; if empty, HERMES_HOME", words(&p.Roots))
	f.Func("networks", "`NETWORKS` that a sandbox may join, besides none and the engine's default", words(&p.Networks))
	f.Func("runtimes", "`RUNTIMES` that a sandbox may have, besides the engine's default", words(&p.Runtimes))
	f.StringVar(&s.rootMode, "root", "", "`private`: commands may be root inside, and share no file with the caller; if empty, commands run as the caller, unless the engine maps root inside to another user")
	f.Int64Var(&s.memory, "memory", 5120, "highest limit of memory in `MB`, which is also the default of a sandbox; 0 means no limit")
	f.Float64Var(&p.CPUs, "cpus", 0, "highest limit of `PROCESSORS`, which is also the default of a sandbox; 0 means no limit")
	f.IntVar(&p.MaxContainers, "most", 64, "`SANDBOXES` that one user may have; 0 means no limit")
}

// check returns an error if a setting is invalid.
func (s *settings) check() error {
	switch {
	case s.rootMode != "" && s.rootMode != "private":
		return fmt.Errorf("--root is %q: it must be private, or empty", s.rootMode)
	// The condition about CPUs is also true for NaN.
	case s.memory < 0 || s.memory > math.MaxInt32, s.policy.MaxContainers < 0, !(s.policy.CPUs >= 0):
		return errors.New("a limit must be a number, 0 or more")
	}
	return nil
}

// readSettings reads the settings from the flags. Where a flag is absent, it uses the environment. If ok is false, the caller
// exits with code.
func readSettings(args []string, lookup func(string) (string, bool), out io.Writer) (s settings, code int, ok bool) {
	verb := cmdline.Verb{
		Program: "hinit sandbox", Name: "serve", Args: "[OPTIONS]", Action: "serve sandboxes",
		Summary: "own the sandboxes of this volume for all agents; hinit runs it with HINIT_SANDBOX=1",
	}
	f := cmdline.NewFlagSet(verb.Name)
	s.defineFlags(f)
	var problem error
	f.VisitAll(func(option *flag.Flag) {
		name := strings.ToUpper("hinit_sandbox_" + option.Name)
		option.Usage += fmt.Sprintf(" (%s; default: %q)", name, option.DefValue)
		if value, _ := lookup(name); value != "" {
			if err := option.Value.Set(value); err != nil {
				problem = fmt.Errorf("%s is %q: %w", name, value, err)
			}
		}
	})
	if _, code, ok = verb.Parse(f, args, 0, 0, out, os.Stderr); !ok {
		return s, code, false
	}
	if problem = cmp.Or(problem, s.check()); problem != nil {
		fmt.Fprintf(os.Stderr, "cannot serve sandboxes: %v; see: hinit sandbox serve --help\n", problem)
		return s, cmdline.ExitUsage, false
	}
	s.policy.Memory, s.policy.PrivateRoot = s.memory<<20, s.rootMode != ""
	return s, 0, true
}
