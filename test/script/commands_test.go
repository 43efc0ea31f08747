package script_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rogpeppe/go-internal/testscript"
)

// commands is the scenarios' language, besides what testscript has by itself. NAME is a service or a profile.
//
//	init [-user UID] [-tty [-alien]] [-stdin FILE] [-stall] [-cwd DIR] [-as NAME] [-faults] [-ro DIR] [-tmpfs DIR] [WORD...]
//	                                    start the init with this CMD; with -stall its output is not read, with -alien the
//	                                    terminal is not its controlling one
//	unstall                             begin to read the output of an init that was started with -stall
//	waitinit [CODE]                     wait for the end of the init, with this exit code (0) and no process left
//	stopinit [-sig SIG] [CODE]          signal the init, then waitinit: no service may use up the budget of a stop (see setup)
//	signalinit SIG                      signal the init and do not wait
//	interrupt                           Ctrl-C for a CMD that prints "got INT", and again at once, until that stops the container
//	[!] hinit WORD...                   the command line, inside the container (docker exec); outside when there is none
//	[!] inside [-user UID] WORD...      any program inside the container
//	[!] asagent WORD...                 any program on the host's side of the volume, as the owner of the volume
//	startfails NAME                     hinit start fails; a gateway that takes a second to fail has started, and is started again
//	reexec N                            hinit reexec until it is image N; it may refuse while its files are not at rest
//	exitcode N                          the last hinit, inside or asagent has ended with this exit code
//	follow NAME FILE WORD...            hinit in the background, its output to a file
//	endfollow NAME                      end the command of follow with Ctrl-C; it must exit with 0
//	reconfigure FILE                    puts a configuration in the place of hinit.yaml
//	waitfor NAME KEY=VALUE...           poll the status of a service; also KEY!=VALUE, KEY>=N; "gone" for no such service
//	get VAR NAME KEY                    a value of the status as a variable
//	json FILE KEY=VALUE...              check a JSON file, or stdout; waitjson polls it
//	waitstatus KEY=VALUE...             poll the whole status of hinit
//	waitboot                            wait until the boot is over
//	waitgrep [-count=N] PATTERN FILE    poll a file for a pattern
//	killgw SIG NAME...                  signal the main process of services
//	killrepeat N NAME...                kill -9 each N times and count the restarts with hinit
//	[!] proc PATTERN                    a living process of the container has a command line like this, or none has, now
//	waitproc PATTERN                    wait until a living process has a command line like this
//	waituntil WORD...                   run a program on the host's side over and over until it succeeds
//	processes N                         so many processes are alive in the container besides the init, soon
//	nozombies                           every zombie of the container is reaped soon
//	type TEXT                           type on the container's terminal; \x03 and the like are known
//	numbered FILE FIRST LAST            the flood lines in a file are those, in order, each once
//	lines FILE PATTERN...               every line of a file matches one of the patterns
//	shapes 'COMMAND;WORD...'...         every command of docs/reference/json.md prints what that page says, with --json
func commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		"init":        withoutNegation(cmdInit),
		"unstall":     withoutNegation(cmdUnstall),
		"waitinit":    withoutNegation(cmdWaitInit),
		"stopinit":    withoutNegation(cmdStopInit),
		"signalinit":  withoutNegation(cmdSignalInit),
		"interrupt":   withoutNegation(cmdInterrupt),
		"hinit":       cmdHinit,
		"inside":      cmdInside,
		"asagent":     cmdAsAgent,
		"startfails":  withoutNegation(cmdStartFails),
		"reexec":      withoutNegation(cmdReexec),
		"exitcode":    withoutNegation(cmdExitCode),
		"follow":      withoutNegation(cmdFollow),
		"endfollow":   withoutNegation(cmdEndFollow),
		"reconfigure": withoutNegation(cmdReconfigure),
		"waitfor":     withoutNegation(cmdWaitFor),
		"get":         withoutNegation(cmdGet),
		"json":        withoutNegation(cmdJSON),
		"waitjson":    withoutNegation(cmdWaitJSON),
		"waitstatus":  withoutNegation(cmdWaitStatus),
		"waitboot":    withoutNegation(cmdWaitBoot),
		"waitgrep":    withoutNegation(cmdWaitGrep),
		"killgw":      withoutNegation(cmdKill),
		"killrepeat":  withoutNegation(cmdKillRepeat),
		"proc":        cmdProc,
		"waitproc":    withoutNegation(cmdWaitProc),
		"waituntil":   withoutNegation(cmdWaitUntil),
		"processes":   withoutNegation(cmdProcesses),
		"nozombies":   withoutNegation(cmdNoZombies),
		"type":        withoutNegation(cmdType),
		"resize":      withoutNegation(cmdResize),
		"numbered":    withoutNegation(cmdCheckNumbered),
		"lines":       withoutNegation(cmdLines),
		"shapes":      withoutNegation(cmdShapes),
	}
}

// withoutNegation wraps a command that can't be negated.
func withoutNegation(run func(ts *testscript.TestScript, args []string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg {
			ts.Fatalf("this command can't be negated")
		}
		ts.Check(run(ts, args))
	}
}

func containerOf(ts *testscript.TestScript) *container {
	c, ok := ts.Value(containerKey{}).(*container)
	if !ok {
		ts.Fatalf("the scenario has no container")
	}
	return c
}

// repeatedFlag is a repeatable flag.
type repeatedFlag []string

func (w *repeatedFlag) String() string     { return strings.Join(*w, " ") }
func (w *repeatedFlag) Set(s string) error { *w = append(*w, s); return nil }

func newFlags(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

func cmdInit(ts *testscript.TestScript, args []string) error {
	f := newFlags("init")
	user := f.Int("user", 0, "")
	tty := f.Bool("tty", false, "")
	alien := f.Bool("alien", false, "")
	cwd := f.String("cwd", "", "")
	as := f.String("as", "", "")
	stdin := f.String("stdin", "", "")
	stall := f.Bool("stall", false, "")
	nofile := f.Uint64("nofile", 0, "")
	faults := f.Bool("faults", false, "")
	var ro, tmpfs repeatedFlag
	f.Var(&ro, "ro", "")
	f.Var(&tmpfs, "tmpfs", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	argv := []string{"hinit", "init"}
	if *as != "" {
		argv = []string{*as}
	}
	o := stageConfig{
		Program: ts.Getenv("HINIT"), Argv: append(argv, f.Args()...), Dir: *cwd,
		UID: *user, GID: *user, ReadOnly: ro, Tmpfs: tmpfs, NoFile: *nofile,
	}
	if *faults {
		o.Program = faulty()
	}
	if *stdin != "" {
		*stdin = ts.MkAbs(*stdin)
	}
	env, err := environment(ts)
	if err != nil {
		return err
	}
	return containerOf(ts).start(o, env, stdio{tty: *tty, foreign: *alien, file: *stdin, stall: *stall})
}

func cmdUnstall(ts *testscript.TestScript, _ []string) error {
	containerOf(ts).unstall()
	return nil
}

// environment returns the variables that the scenario has set with env.
func environment(ts *testscript.TestScript) ([]string, error) {
	name := filepath.Join(containerOf(ts).work, ".tmp", "environment")
	if err := ts.Exec("sh", "-c", `exec env -0 >"$1"`, "sh", name); err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(ts.ReadFile(name), "\x00"), "\x00"), nil
}

func codeOf(args []string) (int, error) {
	switch len(args) {
	case 0:
		return 0, nil
	case 1:
		return strconv.Atoi(args[0])
	}
	return 0, errors.New("expected at most an exit code")
}

func cmdWaitInit(ts *testscript.TestScript, args []string) error {
	want, err := codeOf(args)
	if err != nil {
		return err
	}
	return checkExitCode(containerOf(ts), want)
}

func checkExitCode(c *container, want int) error {
	code, err := c.wait()
	if err == nil && code != want {
		err = fmt.Errorf("the init ended with code %d, not %d", code, want)
	}
	return err
}

func cmdStopInit(ts *testscript.TestScript, args []string) error {
	f := newFlags("stopinit")
	name := f.String("sig", "TERM", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	want, err := codeOf(f.Args())
	if err != nil {
		return err
	}
	sig, err := signalNamed(*name)
	if err != nil {
		return err
	}
	c := containerOf(ts)
	if err := c.signalInit(sig); err != nil {
		return err
	}
	if sig != unix.SIGKILL {
		return checkExitCode(c, want)
	}
	// The services end with the container.
	code, _ := c.wait()
	if code != 137 {
		return fmt.Errorf("the init ended with code %d", code)
	}
	return nil
}

func cmdSignalInit(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("expected: signalinit SIG")
	}
	sig, err := signalNamed(args[0])
	if err != nil {
		return err
	}
	return containerOf(ts).signalInit(sig)
}

// cmdInterrupt presses Ctrl-C twice. It repeats that if the init counts the second one as a first.
func cmdInterrupt(ts *testscript.TestScript, args []string) error {
	if len(args) != 0 {
		return errors.New("interrupt takes no words")
	}
	c := containerOf(ts)
	for passed := 0; ; passed++ {
		if err := c.signalInit(unix.SIGINT); err != nil {
			return err
		}
		stops := false
		err := poll(patience, func() error {
			stops = strings.Contains(ts.ReadFile("container.err"), "stopping the container: received SIGINT")
			if n := strings.Count(ts.ReadFile("container.out"), "got INT\n"); !stops && n <= passed {
				return fmt.Errorf("the CMD has got %d of %d SIGINTs, and the container does not stop", n, passed+1)
			}
			return nil
		})
		if err != nil || stops {
			return err
		}
		if passed == 10 {
			return errors.New("the CMD has got them all")
		}
	}
}

func signalNamed(name string) (unix.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil {
		return unix.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("there is no signal %q", name)
}

// execute runs a program, and records its exit code and output.
func execute(ts *testscript.TestScript, neg bool, argv []string) {
	err := ts.Exec(argv[0], argv[1:]...)
	code := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	ts.Setenv("code", strconv.Itoa(code))
	switch {
	case neg && code == 0:
		ts.Fatalf("unexpected success")
	case !neg && code != 0:
		ts.Fatalf("exit code %d", code)
	}
}

func cmdExitCode(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("expected: exitcode N")
	}
	if got := ts.Getenv("code"); got != args[0] {
		return fmt.Errorf("the exit code was %s, not %s", got, args[0])
	}
	return nil
}

// cmdHinit runs the command line.
func cmdHinit(ts *testscript.TestScript, neg bool, args []string) {
	argv := append([]string{filepath.Join(built.bin, "hinit")}, args...)
	execute(ts, neg, append(nsenterArgs(containerOf(ts), 0), argv...))
}

// cmdStartFails starts a service that ends at once. It ignores starts that a busy machine reports
// as done.
func cmdStartFails(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("expected: startfails NAME")
	}
	c := containerOf(ts)
	argv := append(nsenterArgs(c, 0), filepath.Join(built.bin, "hinit"), "start", args[0])
	return poll(patience, func() error {
		err := ts.Exec(argv[0], argv[1:]...)
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			ts.Setenv("code", strconv.Itoa(exit.ExitCode()))
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s was up for a second", args[0])
	})
}

// reexecRefusals matches the messages with which hinit refuses a re-execution for now.
var reexecRefusals = regexp.MustCompile("try again|the disk does not answer|cannot (reach|get an answer of) the scan directory")

// cmdReexec re-executes hinit, and repeats the request while its files are busy.
func cmdReexec(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("expected: reexec N")
	}
	argv := append(nsenterArgs(containerOf(ts), 0), filepath.Join(built.bin, "hinit"), "reexec")
	if next := filepath.Join(built.bin, "next", "hinit"); exists(next) { // The scenario alternates between two versions.
		argv = append(argv, "--binary", next)
		if n, err := strconv.Atoi(args[0]); err == nil && n%2 != 0 {
			argv[len(argv)-1] = filepath.Join(built.bin, "hinit")
		}
	}
	err := checkReexec(ts, argv)
	if out := ts.ReadFile("stdout"); err == nil && !strings.Contains(out, "is image "+args[0]+" now") {
		err = fmt.Errorf("expected image %s: %s", args[0], out)
	}
	return err
}

// checkReexec repeats hinit reexec until it succeeds or fails for good.
func checkReexec(ts *testscript.TestScript, argv []string) error {
	var refused error
	err := poll(patience, func() error {
		refused = ts.Exec(argv[0], argv[1:]...)
		if refused != nil && reexecRefusals.MatchString(ts.ReadFile("stderr")) {
			return refused
		}
		return nil
	})
	return cmp.Or(err, refused)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func cmdInside(ts *testscript.TestScript, neg bool, args []string) {
	f := newFlags("inside")
	user := f.Int("user", 0, "")
	ts.Check(f.Parse(args))
	if f.NArg() == 0 || !containerOf(ts).running() {
		ts.Fatalf("expected a running container and a program")
	}
	execute(ts, neg, append(nsenterArgs(containerOf(ts), *user), f.Args()...))
}

// nsenterArgs returns the nsenter words that run a command inside the container.
func nsenterArgs(c *container, user int) []string {
	if !c.running() {
		return nil
	}
	argv := []string{"nsenter", "-t", strconv.Itoa(c.initPID), "-p", "-m"}
	if os.Geteuid() != 0 {
		argv = append(argv, "-U", "--preserve-credentials")
	}
	if user != 0 {
		argv = append(argv, "-S", strconv.Itoa(user), "-G", strconv.Itoa(user))
	}
	return append(argv, "--")
}

func cmdAsAgent(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("expected a program")
	}
	if os.Geteuid() == 0 {
		id := strconv.Itoa(agentID)
		args = append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--"}, args...)
	}
	execute(ts, neg, args)
}

// helper is a background command.
type helper struct {
	cmd *exec.Cmd
	out *os.File
}

func (h *helper) kill() {
	_ = unix.Kill(-h.cmd.Process.Pid, unix.SIGKILL)
	_ = h.cmd.Wait()
	_ = h.out.Close()
}

func cmdFollow(ts *testscript.TestScript, args []string) error {
	if len(args) < 3 {
		return errors.New("expected: follow NAME FILE WORD...")
	}
	c := containerOf(ts)
	env, err := environment(ts)
	if err != nil {
		return err
	}
	out, err := os.Create(ts.MkAbs(args[1]))
	if err != nil {
		return err
	}
	argv := append(append(nsenterArgs(c, 0), filepath.Join(built.bin, "hinit")), args[2:]...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, c.work, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		_ = out.Close()
		return err
	}
	if c.helpers == nil {
		c.helpers = map[string]*helper{}
	}
	c.helpers[args[0]] = &helper{cmd, out}
	return nil
}

func cmdEndFollow(ts *testscript.TestScript, args []string) error {
	c := containerOf(ts)
	if len(args) != 1 || c.helpers[args[0]] == nil {
		return errors.New("expected: endfollow NAME, of a running one")
	}
	h := c.helpers[args[0]]
	delete(c.helpers, args[0])
	defer h.out.Close() // The other process has its own copy of the file.
	target := h.cmd.Process.Pid
	if filepath.Base(h.cmd.Path) == "nsenter" { // nsenter only waits for its child, so signal the child.
		for _, p := range allProcesses() {
			if p.ppid == h.cmd.Process.Pid {
				target = p.pid
			}
		}
	}
	if err := unix.Kill(target, unix.SIGINT); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- h.cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		_ = unix.Kill(-h.cmd.Process.Pid, unix.SIGKILL)
		<-ended
		return errors.New("it does not end on Ctrl-C")
	}
}

func cmdReconfigure(ts *testscript.TestScript, args []string) error {
	if len(args) != 1 {
		return errors.New("expected: reconfigure FILE")
	}
	return os.WriteFile(ts.Getenv("HINIT_CONFIG"), expand(ts.Getenv, []byte(ts.ReadFile(args[0]))), 0o644)
}

// cmdResize changes the size of the init's terminal.
func cmdResize(ts *testscript.TestScript, args []string) error {
	c := containerOf(ts)
	if len(args) != 2 || c.terminal == nil {
		return errors.New("expected: resize ROWS COLUMNS, with an init that has a terminal")
	}
	rows, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil {
		return err
	}
	columns, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return err
	}
	return c.terminal.resize(uint16(rows), uint16(columns))
}

func cmdType(ts *testscript.TestScript, args []string) error {
	c := containerOf(ts)
	if len(args) != 1 || c.terminal == nil {
		return errors.New("expected: type TEXT, with an init that has a terminal")
	}
	text, err := strconv.Unquote(`"` + args[0] + `"`)
	if err != nil {
		return err
	}
	_, err = c.terminal.master.WriteString(text)
	return err
}
