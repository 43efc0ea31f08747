package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/pty"
	"hinit/internal/trust"
	"hinit/sandbox"
	"hinit/sandbox/cli"
	"hinit/sandbox/daemon"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

// Program is hinit-sandbox for one kind of container engine. cmd/hinit-sandbox makes one for Docker.
type Program struct {
	// Engine returns the engine at an address, see sandbox.Options.EngineAddress. It is called at most once, and never if the
	// service handles the request.
	Engine func(address string) (sandbox.FullEngine, error)
}

// Run executes a command line and returns the exit code. argv[0] selects what the program does, see the package comment.
func (p Program) Run(argv []string) int {
	return cmdline.RunWithOutput(func(out io.Writer) int { return p.main(argv, out) })
}

func (p Program) main(argv []string, out io.Writer) int {
	if len(argv) == 0 {
		argv = []string{"hinit-sandbox"}
	}
	if isDocker(argv[0], os.Getenv("HERMES_DOCKER_BINARY")) {
		return p.runAsDocker(argv[1:])
	}
	args := argv[1:]
	if len(args) == 0 {
		cli.Help(os.Stderr)
		return cmdline.ExitUsage
	}
	switch args[0] {
	case "help", "-h", "--help", "-help":
		cli.Help(out)
		return cmdline.ExitDone
	case "serve":
		return p.serve(args[1:], out)
	case "cp":
		ctx, caught := signalContext()
		return caught(cli.Copy(ctx, args, func(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
			return p.dispatch(ctx, daemon.Request{Args: args, Stdin: in != nil}, daemon.Streams{In: in, Out: out, Err: errs})
		}, out, os.Stderr))
	}
	req, terminal, code, ok := cli.ParseLine(args, out, os.Stderr)
	if !ok { // The help and usage errors need no engine.
		return code
	}
	local := daemon.Streams{Out: out, Err: os.Stderr}
	if req.Stdin {
		local.In = os.Stdin
	}
	if args[0] == "logs" {
		var endOut, endErr func()
		local.Out, endOut = cmdline.TerminalWriter(out)
		local.Err, endErr = cmdline.TerminalWriter(os.Stderr)
		defer endOut()
		defer endErr()
	}
	if terminal {
		return p.runOnTerminal(req, local)
	}
	return p.run(req, local)
}

// run executes a request, and cancels it when a signal arrives.
func (p Program) run(req daemon.Request, local daemon.Streams) int {
	ctx, caught := signalContext()
	return caught(p.dispatch(ctx, req, local))
}

// isDocker reports whether the program was called by the name of a docker command, which it then replaces. configured is the
// path in HERMES_DOCKER_BINARY.
func isDocker(name, configured string) bool {
	base := filepath.Base(name)
	return base == "docker" || base == "podman" || base != name && name == configured
}

// signalContext returns a context that ends on SIGINT, SIGTERM or SIGHUP. It also returns a function from an exit code to the
// exit code of this process, which differs if such a signal has arrived.
func signalContext() (context.Context, func(code int) int) {
	ctx, cancel := context.WithCancel(context.Background())
	caught, signals := syscall.Signal(0), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() { caught, _ = (<-signals).(syscall.Signal); cancel() }()
	return ctx, func(code int) int {
		if ctx.Err() != nil { // Only a signal ends the context, so caught is set.
			code = 128 + int(caught)
		}
		return code
	}
}

// dispatch sends a request to the service if there is one. Otherwise this process handles the request.
func (p Program) dispatch(ctx context.Context, req daemon.Request, local daemon.Streams) int {
	req.Home = os.Getenv("HERMES_HOME")
	req.Parent, _, _ = dockercli.ProcessName(os.Getppid()) // Ignore the error: Parent is then "", because the parent has ended.
	conn, err := daemon.Dial(ctx, dial.SandboxSocket(os.LookupEnv))
	switch {
	case errors.Is(err, daemon.ErrNoService):
		return p.runLocally(ctx, req, local)
	case err != nil:
		fmt.Fprintln(local.Err, err)
		return unreachableExitCode(req)
	}
	code, err := conn.Run(ctx, req, local)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(local.Err, "hinit:", err)
		if errors.Is(err, daemon.ErrServiceLost) {
			return cli.ExitCodeUnknown
		}
		return cmdline.ExitFailed
	}
	return code
}

// unreachableExitCode returns the exit code for a service that does not answer. The docker command has one code for all its own
// failures.
func unreachableExitCode(req daemon.Request) int {
	if req.Docker {
		return 1
	}
	return cmdline.ExitUnreachable
}

// runOnTerminal executes a request. If standard input is a terminal, the command gets its own terminal, which is connected
// with it.
func (p Program) runOnTerminal(req daemon.Request, local daemon.Streams) int {
	restore, err := pty.MakeRaw(os.Stdin)
	if err != nil {
		return p.run(req, local)
	}
	defer restore()
	req.TTY = true
	req.Size.Columns, req.Size.Rows = pty.Size(os.Stdin)
	resizes := make(chan sandbox.TerminalSize, 1)
	local.Resizes = resizes
	defer pty.OnResize(os.Stdin, sandbox.KeepNewestSize(resizes))()
	return p.run(req, local)
}

// runAsDocker executes a command line of the docker command, and returns the exit code.
func (p Program) runAsDocker(args []string) int {
	call, err := dockercli.Parse(args, allowedEscapes())
	if other := (*dockercli.UnhandledError)(nil); errors.As(err, &other) {
		return execRealDocker(args, err)
	}
	if err != nil {
		_, none := os.Stat(dial.SandboxSocket(os.LookupEnv))
		return dockercli.PrintError(os.Stderr, err, none == nil)
	}
	// Use a larger pipe, which needs fewer writes; ignore the error if stdout is not a pipe.
	_, _ = unix.FcntlInt(os.Stdout.Fd(), unix.F_SETPIPE_SZ, 1<<20)
	req := daemon.Request{Docker: true, Args: args, Env: sandbox.InheritedVariables(call.Env), Stdin: call.Stdin}
	return p.run(req, daemon.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
}

// allowedEscapes returns the words of HINIT_SANDBOX_ALLOW.
func allowedEscapes() []string {
	return strings.FieldsFunc(os.Getenv("HINIT_SANDBOX_ALLOW"), func(r rune) bool { return r == ',' || r == ' ' })
}

// execRealDocker executes the real docker command in place of this process, if PATH has one. Otherwise it prints the error
// why. Root executes no command that another user can change, because root's PATH may end with a directory of the agent.
func execRealDocker(args []string, why error) int {
	refused := ""
	self, err := os.Stat("/proc/self/exe")
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, "docker")
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || os.SameFile(self, info) {
			continue
		}
		if violation, _ := trust.Check(path, trust.RootOnly); os.Geteuid() == 0 && violation != nil {
			refused = fmt.Sprintf(" that root may trust: %s %s", violation.Path, violation.Why)
			continue
		}
		if err := syscall.Exec(path, append([]string{"docker"}, args...), os.Environ()); err != nil {
			fmt.Fprintf(os.Stderr, "cannot run %s: %v\n", path, err)
			return 126
		}
	}
	fmt.Fprintf(os.Stderr, "docker: %v, and there is no docker command in PATH%s\n", why, refused)
	return 1
}

// runLocally handles a request in this process, which uses the engine directly.
func (p Program) runLocally(ctx context.Context, req daemon.Request, local daemon.Streams) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(local.Err, err)
		return code
	}
	opts, warnings, err := sandbox.FromEnv(os.LookupEnv)
	if err != nil {
		return fail(cmdline.ExitUsage, err)
	}
	if err := mayUseEngine(dial.SandboxSocket(os.LookupEnv), opts); err != nil {
		return fail(unreachableExitCode(req), err)
	}
	if !req.Docker {
		for _, w := range warnings {
			fmt.Fprintln(local.Err, "warning:", w)
		}
		opts.Warn = func(text string) { fmt.Fprintln(local.Err, "warning:", text) }
	}
	opts.Session = "cli"
	engine, err := p.Engine(opts.EngineAddress)
	if err != nil {
		return fail(unreachableExitCode(req), err)
	}
	manager, err := sandbox.NewManager(policy.TranslatingEngine{Engine: engine}, opts)
	if err != nil {
		return fail(cmdline.ExitFailed, err)
	}
	defer manager.Close()
	return runRequest(ctx, manager, req, allowedEscapes(), local)
}

// mayUseEngine returns an error if this process must not use the engine directly. If the operator wants the service, an agent
// must not get around its rules, for instance by stopping it. Root must not use a directory that an agent can change or
// replace: the agent's files would then run in a sandbox that only root may have.
func mayUseEngine(socket string, opts sandbox.Options) error {
	_, left := os.Stat(socket + ".root") // The service writes this file, in a directory that only root can change.
	switch wanted := strings.ToLower(os.Getenv("HINIT_SANDBOX")); {
	case left == nil, wanted == "1", wanted == "true", wanted == "yes":
		return errors.New("cannot use the sandboxes: their service is not up; start it with: hinit start sandbox")
	case os.Geteuid() != 0:
		return nil
	}
	for _, dir := range []string{opts.Home, opts.Dir} {
		// A missing directory is no error if only root can make it.
		if violation, _ := trust.Check(dir, trust.RootOnly); violation != nil {
			return fmt.Errorf("cannot use the sandboxes of %s as root: %s %s; run this as the agent's user, or with the service (HINIT_SANDBOX=1)", dir, violation.Path, violation.Why)
		}
	}
	return nil
}

// runRequest executes a request with the caller's manager. allow has the words of HINIT_SANDBOX_ALLOW; in the service it is
// nil.
func runRequest(ctx context.Context, m *sandbox.Manager, req daemon.Request, allow []string, s daemon.Streams) int {
	if !req.Docker {
		return cli.Main(ctx, m, req, s)
	}
	call, err := dockercli.Parse(req.Args, allow)
	if err != nil {
		return dockercli.PrintError(s.Err, err, allow == nil)
	}
	return (&dockercli.Emulator{Manager: m}).Execute(ctx, call, dockercli.Caller{Process: req.Parent, Env: req.Env, Streams: s})
}
