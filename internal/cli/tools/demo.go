package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/internal/proc"
)

var demoVerb = cli.Verb{
	Name: "demo", Action: "run the demo", Args: "--agent PATH [--for D]",
	Summary: "run a demo: three profiles of an agent under an init in a PID namespace",
	Run:     runDemo,
}

// demoInsideFlag is a hidden argument of the demo. With this argument, the demo is PID 1 of a new namespace, and becomes the
// init.
const demoInsideFlag = "--inside"

func runDemo(t *cli.Terminal, c *cli.Call) int {
	if len(c.Args) == 2 && c.Args[0] == demoInsideFlag {
		return demoInit(t, c.Args[1])
	}
	agent := c.Flags.String("agent", "", "`PATH` of the agent to host (the example agent of this project)")
	period := c.Flags.Duration("for", 0, "stop by itself after `D`")
	if _, code, ok := c.Parse(t, 0, 0); !ok {
		return code
	}
	if *agent == "" {
		return t.Fail(cmdline.ExitUsage, "cannot run the demo: name an agent with --agent, such as dist/example-agent")
	}
	d := &demoRun{Terminal: t, duration: *period}
	code, err := d.run(*agent)
	return max(code, t.ReportError(c.Action(), err))
}

type demoRun struct {
	*cli.Terminal
	dir        string
	hinit      string // path of the program hinit
	agent      string
	duration   time.Duration
	topProgram string // path of hinit-top; "" without a terminal or an installed hinit-top
}

// prepare creates the demo's data volume and configuration in a new temporary directory.
func (d *demoRun) prepare() (err error) {
	if d.hinit, err = cmdline.HinitPath(); err != nil {
		return fmt.Errorf("there is no %s; install it beside hinit-tools", d.hinit)
	}
	if d.IsScreen && proc.IsTerminal(d.In) {
		if d.topProgram, err = cmdline.SiblingProgram("hinit-top"); err != nil || unix.Access(d.topProgram, unix.X_OK) != nil {
			fmt.Fprintf(d.Err, "demo: there is no %s, so the demo prints the status instead of a screen\n", d.topProgram)
			d.topProgram = ""
		}
	}
	if d.dir, err = os.MkdirTemp("", "hinit-demo-"); err != nil {
		return err
	}
	files := map[string]string{
		"data/SOUL.md":                   "The root profile.\n",
		"data/gateway_state.json":        `{"desired_state":"running"}` + "\n",
		"data/profiles/coder/SOUL.md":    "Writes code.\n",
		"data/profiles/writer/SOUL.md":   "Writes prose.\n",
		"data/profiles/coder/agent.conf": "crash_after=3s\ncrash_times=1\n",
		"hinit.yaml": fmt.Sprintf(`home: %[1]s/data
agent: {user: "0:0", binary: %[2]s}
control: {socket: %[1]s/control.sock}
`, d.dir, d.agent),
	}
	for _, p := range []string{"coder", "writer"} {
		files["data/profiles/"+p+"/gateway_state.json"] = files["data/gateway_state.json"]
	}
	for name, content := range files {
		path := filepath.Join(d.dir, name)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// environment returns the environment for the init of the demo and for hinit-top. It leaves out variables of the user's shell
// that would change settings of hinit or of the agent.
func (d *demoRun) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "HINIT_") || strings.HasPrefix(kv, "HERMES_")
	})
	return append(env, "HINIT_CONFIG="+d.dir+"/hinit.yaml", "HERMES_HOME="+d.dir+"/data")
}

func (d *demoRun) start(isolated bool) (*proc.Child, error) {
	argv := []string{"/proc/self/exe", "demo", demoInsideFlag, d.hinit}
	namespaces := setNamespaces
	if !isolated {
		argv, namespaces = []string{d.hinit, "init", "gateway", "run"}, nil
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	stdout, stderr := os.Stdout, os.Stderr
	if d.topProgram != "" {
		console, err := os.OpenFile(d.dir+"/console", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, err
		}
		defer console.Close()
		stdout, stderr = console, console
	}
	return proc.StartChild(proc.Spec{ID: 1, Argv: argv, Env: d.environment(), Files: []*os.File{null, stdout, stderr}, AdjustAttributes: namespaces, DiesWithStarter: true})
}

// startTop starts hinit-top as soon as the init answers. At the end of the screen it calls quit, which ends the demo.
func (d *demoRun) startTop(ctx context.Context, quit func()) {
	defer quit()
	for dial.New(d.dir+"/control.sock").CheckConnection() != nil {
		if !pause.For(ctx, cli.DialRetryPause) {
			return
		}
	}
	top, err := proc.StartChild(proc.Spec{ID: 2, Argv: []string{d.topProgram}, Env: d.environment(), Files: []*os.File{d.In, os.Stdout, os.Stderr}, SameSession: true})
	if err != nil {
		fmt.Fprintf(d.Err, "demo: %v\n", err)
		return
	}
	unhook := context.AfterFunc(ctx, func() { _ = top.Signal(unix.SIGTERM) })
	defer unhook()
	if _, err := top.Wait(); err != nil {
		fmt.Fprintf(d.Err, "demo: %v\n", err)
	}
}

// run starts the init with the agent, and waits for the end of the demo. It returns the exit code of the init.
func (d *demoRun) run(agent string) (code int, err error) {
	if d.agent, err = filepath.Abs(agent); err == nil {
		err = unix.Access(d.agent, unix.X_OK)
	}
	if err != nil {
		return 0, fmt.Errorf("agent %q: %w", agent, err)
	}
	defer func() { _ = os.RemoveAll(d.dir) }()
	if err := d.prepare(); err != nil {
		return 0, err
	}
	runtime.LockOSThread() // the kernel kills the init at the end of this thread, so the init can't outlive this process
	signaled, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release() // a signal must not end this process before its child
	ctx, quit := context.WithCancel(signaled)
	defer quit()
	child, err := d.start(true)
	if errors.Is(err, unix.EPERM) {
		fmt.Fprintln(d.Err, "demo: no PID namespace allowed here, so hinit runs as a subreaper instead")
		child, err = d.start(false)
	}
	if err != nil {
		return 0, err
	}
	unhook := context.AfterFunc(ctx, func() { _ = child.Signal(unix.SIGTERM) }) // the init has its own session, so Ctrl-C doesn't reach it
	if d.duration > 0 {
		time.AfterFunc(d.duration, quit)
	}
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		if d.topProgram != "" {
			d.startTop(ctx, quit)
		} else {
			d.printSteps(ctx)
		}
	}()
	x, err := child.Wait()
	unhook()
	quit()
	<-shown
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(d.Out, "demo: the init has ended with code %d, and nothing it started is left\n", x.Code)
	return max(x.Code, 0), nil
}

// printSteps prints the status three times: when all gateways are up, when one has crashed, and when it is up again.
func (d *demoRun) printSteps(ctx context.Context) {
	coder := func(st client.Status) client.Service { return *cmp.Or(st.Find("gateway-coder"), &client.Service{}) }
	steps := []struct {
		when func(client.Status) bool
		text string
	}{
		{allGatewaysUp, "demo: three gateways are up. The one of \"coder\" will crash in a few seconds:"},
		{func(st client.Status) bool { return coder(st).LastExit != nil }, "demo: it has crashed, and will be started again:"},
		{
			func(st client.Status) bool { return allGatewaysUp(st) && coder(st).Restarts > 0 },
			"demo: it is back, and the others never noticed. Ask yourself, in another terminal:\n" +
				"demo:   HINIT_CONFIG=" + d.dir + "/hinit.yaml " + d.hinit + " status\n" +
				"demo: Ctrl-C here stops everything.",
		},
	}
	for len(steps) > 0 && ctx.Err() == nil {
		st, err := dial.New(d.dir + "/control.sock").Status(ctx)
		if err != nil || !steps[0].when(st) {
			pause.For(ctx, 50*time.Millisecond)
			continue
		}
		fmt.Fprintln(d.Out, "\n"+steps[0].text)
		_, _ = d.Out.Write(show.StatusTable(st, show.Layout{}))
		fmt.Fprintln(d.Out)
		steps = steps[1:]
	}
}

func allGatewaysUp(st client.Status) bool {
	return len(slices.DeleteFunc(slices.Clone(st.Services), func(s client.Service) bool {
		return s.Kind != client.KindGateway || s.State != client.StateUp || !s.Ready
	})) == 3
}

// demoInit is the first process of the new namespace. It mounts a new /proc, as a container runtime does, and executes hinit.
func demoInit(t *cli.Terminal, hinit string) int {
	if os.Getpid() != 1 {
		return t.Fail(cmdline.ExitUsage, "cannot run the demo: %s is for its own use", demoInsideFlag)
	}
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		err = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err != nil {
		return t.Fail(cmdline.ExitFailed, "cannot run the demo: mounting /proc: %v", err)
	}
	return t.ReportError("run the demo", syscall.Exec(hinit, []string{"init", "gateway", "run"}, os.Environ()))
}

// setNamespaces makes the child PID 1 of a new PID namespace with its own mounts. If the caller isn't root, the child also gets a
// user namespace in which it is root.
func setNamespaces(sys *syscall.SysProcAttr) {
	sys.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWNS
	if uid := os.Geteuid(); uid != 0 {
		sys.Cloneflags |= unix.CLONE_NEWUSER
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
}
