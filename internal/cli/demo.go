package cli

import (
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
	"hinit/internal/control/show"
	"hinit/internal/proc"
)

func demoVerb() verb {
	return verb{
		name: "demo", args: "--agent PATH [--for D]", summary: "show it: three profiles of an agent under an init in a PID namespace",
		help: `Makes a data volume with three profiles in a temporary directory, starts this binary as PID 1 of a
PID namespace on it, lets one gateway crash on purpose, and shows the status. On a terminal it is a
live view with keys to crash, stop and start a gateway. Ctrl-C ends it.`,
		run: demo,
	}
}

// demoInside is the hidden second half of the demo: PID 1 of the new namespace, before it becomes the init.
const demoInside = "--inside"

func demo(t *terminal, c *call) int {
	if len(c.raw) == 1 && c.raw[0] == demoInside {
		return demoInit(t)
	}
	agent := c.flags.String("agent", "", "`PATH` of the agent to host (the example agent of this project)")
	period := c.flags.Duration("for", 0, "stop by itself after `D`")
	if _, code, ok := c.parse(t, 0, 0); !ok {
		return code
	}
	if *agent == "" {
		return t.fail(exitUsage, "cannot run the demo: name an agent with --agent, such as dist/example-agent")
	}
	path, err := filepath.Abs(*agent)
	if err == nil {
		err = unix.Access(path, unix.X_OK)
	}
	if err != nil {
		return t.fail(exitFailed, "cannot run the demo: agent %q: %v", *agent, err)
	}
	dir, err := os.MkdirTemp("", "hinit-demo-")
	if err != nil {
		return t.fail(exitFailed, "cannot run the demo: %v", err)
	}
	defer os.RemoveAll(dir)
	d := &demoRun{terminal: t, dir: dir, agent: path, period: *period}
	if err := d.prepare(); err != nil {
		return t.fail(exitFailed, "cannot run the demo: %v", err)
	}
	return d.run()
}

type demoRun struct {
	*terminal
	dir, agent string
	period     time.Duration
}

// prepare makes the volume and the configuration.
func (d *demoRun) prepare() error {
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
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (d *demoRun) start(isolated bool) (*proc.Child, error) {
	// Settings of the user's own shell are not for this container.
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "HINIT_") || strings.HasPrefix(kv, "HERMES_")
	})
	env = append(env, "HINIT_CONFIG="+d.dir+"/hinit.yaml", "HERMES_HOME="+d.dir+"/data")
	argv := []string{"/proc/self/exe", "demo", demoInside}
	if !isolated {
		argv = []string{"/proc/self/exe", "init", "gateway", "run"}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	stdout, stderr := os.Stdout, os.Stderr
	if d.watched() { // the screen belongs to the live view
		console, err := os.OpenFile(d.console(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, err
		}
		defer console.Close()
		stdout, stderr = console, console
	}
	return proc.StartChild(proc.Spec{
		ID: 1, Argv: argv, Env: env, Files: []*os.File{null, stdout, stderr}, Isolated: isolated,
		Bound: true,
	})
}

// watched reports whether somebody looks at a terminal, and can press keys.
func (d *demoRun) watched() bool { return d.screen && proc.IsTerminal(d.in) }

// console is where the output of the container goes in the live view.
func (d *demoRun) console() string { return d.dir + "/console" }

func (d *demoRun) run() int {
	runtime.LockOSThread() // the init is bound to it: it does not outlive this process, however that ends
	stop := make(chan os.Signal, 4)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	child, err := d.start(true)
	if errors.Is(err, unix.EPERM) {
		fmt.Fprintln(d.err, "demo: no PID namespace allowed here, so hinit runs as a subreaper instead")
		child, err = d.start(false)
	}
	if err != nil {
		return d.fail(exitFailed, "cannot run the demo: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		var after <-chan time.Time
		if d.period > 0 {
			after = time.After(d.period)
		}
		for {
			select {
			case <-stop: // the init has a session of its own, so a terminal's Ctrl-C comes from here
				_ = child.Signal(unix.SIGTERM)
			case <-after:
				_ = child.Signal(unix.SIGTERM)
			case <-ended:
				return
			}
			cancel()
		}
	}()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		if d.watched() {
			d.live(ctx, func() { stop <- syscall.SIGTERM }, child)
		} else {
			d.narrate(ctx)
		}
	}()
	x, err := child.Wait()
	close(ended)
	cancel()
	<-shown // it gives the terminal back
	if err != nil {
		return d.fail(exitFailed, "cannot run the demo: %v", err)
	}
	fmt.Fprintf(d.out, "demo: the init has ended with code %d, and nothing it started is left\n", x.Code)
	return max(x.Code, 0)
}

// narrate shows the status when something worth seeing has happened.
func (d *demoRun) narrate(ctx context.Context) {
	steps := []struct {
		when func(client.Status) bool
		text string
	}{
		{allUp, "demo: three gateways are up. The one of \"coder\" will crash in a few seconds:"},
		{func(st client.Status) bool { return coder(st).LastExit != nil }, "demo: it has crashed, and will be started again:"},
		{
			func(st client.Status) bool { return allUp(st) && coder(st).Restarts > 0 },
			"demo: it is back, and the others never noticed. Ask yourself, in another terminal:\n" +
				"demo:   HINIT_CONFIG=" + d.dir + "/hinit.yaml " + selfName() + " status\n" +
				"demo: Ctrl-C here stops everything.",
		},
	}
	var cl *client.Client
	for len(steps) > 0 && ctx.Err() == nil {
		if cl == nil {
			cl, _ = client.Dial([]string{d.dir + "/control.sock"})
		}
		if cl != nil {
			if st, err := cl.Status(ctx); err == nil && steps[0].when(st) {
				fmt.Fprintln(d.out, "\n"+steps[0].text)
				_, _ = d.out.Write(show.Status(st, show.Look{}))
				fmt.Fprintln(d.out)
				steps = steps[1:]
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func selfName() string {
	if exe, err := os.Executable(); err == nil {
		return exe
	}
	return "hinit"
}

func coder(st client.Status) client.Service {
	for _, s := range st.Services {
		if s.Name == "gateway-coder" {
			return s
		}
	}
	return client.Service{}
}

func allUp(st client.Status) bool {
	up := 0
	for _, s := range st.Services {
		if strings.HasPrefix(s.Name, "gateway-") && s.State == "up" && s.Ready {
			up++
		}
	}
	return up == 3
}

// demoInit gives the new PID namespace a /proc of its own, as a container runtime does, and becomes the init.
func demoInit(t *terminal) int {
	if os.Getpid() != 1 {
		return t.fail(exitUsage, "cannot run the demo: %s is for its own use", demoInside)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return t.fail(exitFailed, "cannot run the demo: making mounts private: %v", err)
	}
	exe, err := os.Readlink("/proc/self/exe") // before the new /proc hides it
	if err != nil {
		return t.fail(exitFailed, "cannot run the demo: %v", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return t.fail(exitFailed, "cannot run the demo: mounting /proc: %v", err)
	}
	err = syscall.Exec(exe, []string{"init", "gateway", "run"}, os.Environ())
	return t.fail(exitFailed, "cannot run the demo: %v", err)
}
