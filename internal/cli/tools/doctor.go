package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/boot/lookup"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
	"hinit/internal/version"
	"hinit/internal/wholefile"
)

var doctorVerb = cli.Verb{
	Name: "doctor", Summary: "check what commonly goes wrong, and say what to do about it", Action: "examine the container", Args: "[--json]",
	Run: withArgs(0, 0, runDoctor),
}

type doctorRun struct {
	*cli.Terminal
	findings client.Findings
}

func runDoctor(t *cli.Terminal, c *cli.Call, _ []string) int {
	x := &doctorRun{Terminal: t}
	in, answers := x.checkInit()
	switch cfg, err := t.ConfigOf(in); {
	case err != nil:
		x.findings.Failed("configuration", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	case in.ServicesFile != "":
		x.reportWarnings(cfg) // hinit run has no agent to check
	default:
		x.checkConfiguration(cfg)
		x.checkImage(cfg)
		x.checkVolume(answers)
		x.printBoardCommand(cfg)
	}
	x.checkKernel()
	tw := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	for _, f := range x.findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Result, show.EscapeName(f.Check), show.EscapeLine(f.Detail))
	}
	code := t.ShowResult(c, x.findings, nil, func() { tw.Flush() })
	if slices.ContainsFunc(x.findings, func(f client.Finding) bool { return f.Result == client.ResultFailed }) {
		code = max(code, cmdline.ExitFailed)
	}
	return code
}

// printBoardCommand prints the command that examines the task board, because this program has no database library. It also
// prints what root may do in a sandbox, from the file of the sandbox service beside its socket.
func (x *doctorRun) printBoardCommand(cfg *config.Config) {
	if s, is := cfg.Services[config.KanbanName]; is && s.Enabled {
		x.findings.OK("task board", "its dispatcher is the service %s; to examine the board: hinit kanban doctor", config.KanbanName)
	}
	if s, is := cfg.Services[config.SandboxName]; is && s.Enabled {
		data, err := wholefile.Read(dial.SandboxSocket(x.Env)+".root", 4<<10)
		if err != nil {
			x.findings.Warning("sandboxes", "the service %s has not said what root inside is: %v; see: hinit logs %s", config.SandboxName, err, config.SandboxName)
			return
		}
		x.findings.OK("sandboxes", "%s", strings.TrimSpace(string(data)))
	}
}

// checkInit checks the running init and its status. answers reports whether the init answers.
func (x *doctorRun) checkInit() (in client.Init, answers bool) {
	st, err := x.Status()
	if err != nil {
		x.findings.Failed("init", "%v", err)
		return in, false
	}
	x.findings.OK("init", "pid %d, version %s", st.Init.PID, st.Init.Version)
	x.checkProgram(st.Init)
	for _, w := range st.Init.Warnings {
		x.findings.Warning("boot", "%s", w)
	}
	x.checkLease(st.Init)
	for _, s := range st.Services {
		x.checkService(s)
		if s.Output != nil && s.Output.Error != "" {
			x.findings.Failed("log", "%s: %s", s.Name, s.Output.Error)
		}
		switch i := s.Isolation; {
		case i == nil || s.PID == 0:
		case len(i.Restrictions) == 0:
			x.findings.Failed("isolation", "%s: %s", s.Name, show.IsolationText(&s))
		default:
			x.findings.OK("isolation", "%s: %s", s.Name, show.IsolationText(&s))
		}
		switch weak := func(l client.Limit) bool { return l.EnforcedBy == client.LimitedByNothing }; {
		case len(s.Limits) == 0 || s.PID == 0:
		case slices.ContainsFunc(s.Limits, weak):
			x.findings.Warning("limits", "%s: %s; the container needs a writable control group of version 2 (see limit-a-service)", s.Name, show.LimitsText(&s))
		default:
			x.findings.OK("limits", "%s: %s", s.Name, show.LimitsText(&s))
		}
	}
	if procPathOf(x.Terminal, st.Init.PID) == "/proc" {
		x.checkMemory(st)
		// The init reaps an ended process within half a second.
		if n := countUnreaped(st.Init.PID, func() { time.Sleep(500 * time.Millisecond) }); n > 0 { //nolint:forbidigo // the init does not announce that it reaps
			x.findings.Failed("zombies", "%d ended processes are not reaped", n)
		}
	}
	return st.Init, true
}

// checkLease reports which init has the lease of the data volume.
func (x *doctorRun) checkLease(in client.Init) {
	l := in.Lease
	if l == nil {
		return // the init needs no lease without profiles
	}
	switch l.State {
	case client.LeaseHeld:
		x.findings.OK("lease", "this container serves the profiles in %q since %s", in.Home, l.Since.UTC().Format(time.RFC3339))
	case client.LeaseWaiting:
		switch since := l.Since.UTC().Format(time.RFC3339); {
		case l.Holder == nil:
			x.findings.Failed("lease", "%s (since %s); nothing but the CMD starts until it does; if this stays so for longer than 15 s, look at the disk or the server behind the volume (to thaw a volume that is frozen for a backup, run on the host: fsfreeze --unfreeze)", l.Detail, since)
		case l.Holder.PID != 0:
			x.findings.Failed("lease", "%s (since %s)", l.Detail, since)
		default:
			x.findings.OK("lease", "%s; this container has waited since %s and takes over when the lock is free; give commands where the lock is (lslocks on the host names the process)", l.Detail, since)
		}
	case client.LeaseNone:
		if !in.Booting { // the container may still get the lease during the boot
			x.findings.Warning("lease", "nothing keeps another container from serving the same profiles: %s; see to it that only one uses this volume", l.Detail)
		}
	}
}

// checkProgram checks whether the init runs the installed program, and whether this command and the init have the same version.
func (x *doctorRun) checkProgram(in client.Init) {
	if procPathOf(x.Terminal, in.PID) == "/proc" && in.BinaryID != "" && !initRunsFile(x.Terminal, in, in.Binary) {
		x.findings.Warning("binary", "the init does not run what %s holds now; to change that without a restart: hinit reexec", in.Binary)
		return
	}
	if own := version.Get().String(); own != in.Version {
		x.findings.Warning("binary", "this command is %s and the init is %s, from %s; install hinit and hinit-tools of one version, then: hinit reexec", own, in.Version, in.Binary)
	}
}

func (x *doctorRun) checkService(s client.Service) {
	name := cmdline.ShellQuote(s.Name)
	switch {
	case s.CrashLoop:
		last := show.LastExitText(s.LastExit)
		if s.Problem != "" {
			last += "; " + s.Problem
		}
		x.findings.Failed(s.Name, "crash-loop, %d failures in a row, last: %s; see: hinit logs %s", s.ConsecutiveFailures, last, name)
	case s.State == client.StateParked, s.State == client.StateFailed:
		text := s.State + ": " + s.Reason
		if s.LastExit == nil || s.LastExit.Cause != "spawn" { // a service that could not start has no log
			text += "; see: hinit logs " + name
		}
		x.findings.Failed(s.Name, "%s", text)
	case s.Problem == "":
	case s.State == client.StateUp && s.Ready:
		x.findings.Failed(s.Name, "%s; see: hinit logs %s", s.Problem, name)
	case s.State == client.StateUp && slices.ContainsFunc(s.Checks, func(c client.Check) bool { return c.Failed }):
		x.findings.Failed(s.Name, "not ready: %s; see: hinit status %s", s.Problem, name)
	case s.State == client.StateUp:
		x.findings.Warning(s.Name, "not ready: %s", s.Problem)
	default:
		x.findings.Warning(s.Name, "%s: %s", s.State, s.Problem)
	}
}

// countUnreaped counts the children of parent that have ended and are still not reaped after wait. If no child has ended, it
// doesn't call wait.
func countUnreaped(parent int, wait func()) int {
	first := zombies(parent)
	if len(first) == 0 {
		return 0
	}
	wait()
	second := zombies(parent)
	maps.DeleteFunc(first, func(pid int, p procstat.Stat) bool { return second[pid].Start != p.Start })
	return len(first)
}

// zombies returns the children of parent that have ended but are not reaped.
func zombies(parent int) procusage.Table {
	all, _ := procusage.ReadProcesses("/proc") // ignore processes that can't be read
	maps.DeleteFunc(all, func(_ int, p procstat.Stat) bool { return p.State != 'Z' || !p.Dead() || p.Parent != parent })
	return all
}

// reportWarnings reports the warnings of the configuration, and unknown environment variables of hinit.
func (x *doctorRun) reportWarnings(cfg *config.Config) {
	x.findings.OK("configuration", "%s", cmp.Or(cfg.Path, "defaults and environment"))
	for _, w := range slices.Concat(cfg.Warnings, config.UnknownVariables(os.Environ())) {
		if slices.ContainsFunc(x.findings, func(f client.Finding) bool { return f.Detail == w }) {
			continue
		}
		x.findings.Warning("configuration", "%s", w)
	}
}

// checkConfiguration checks the users and files in the configuration.
func (x *doctorRun) checkConfiguration(cfg *config.Config) {
	x.reportWarnings(cfg)
	agent, err := lookup.Agent(cfg)
	if err != nil {
		x.findings.Failed("user", "%v", err)
		return
	}
	x.findings.OK("user", "%s is uid %d, gid %d", cfg.Agent.User, agent.User.UID, agent.User.GID)
	for _, why := range refusedPorts(cfg) {
		x.findings.Failed("isolation", "%s", why)
	}
	if err := unix.Access(cfg.Agent.Binary, unix.X_OK); err != nil {
		x.findings.Failed("agent", "cannot execute %q: %v; set agent.binary in hinit.yaml", cfg.Agent.Binary, err)
	} else {
		x.findings.OK("agent", "%s", cfg.Agent.Binary)
	}
	const lost = "sudo, ping with file capabilities and other set-user-id programs gain it nothing"
	switch other := cfg.ServiceWithOtherUser(); {
	case cfg.NoNewPrivs(config.Auto) && other != "":
		x.findings.OK("no_new_privs", "on for what runs as the agent, because service %q runs as another user: %s; for sudo, set agent.no_new_privs: false", other, lost)
	case cfg.NoNewPrivs(config.Auto):
		x.findings.OK("no_new_privs", "on for what runs as the agent: %s", lost)
	case other != "":
		x.findings.Warning("no_new_privs", "off, and service %q runs as another user: a set-user-id file that it leaves on the volume makes the agent that user; "+
			"remove agent.no_new_privs: false (then %s)", other, lost)
	}
}

// checkImage reports hinit's facts about the agent's image, and the boot commands of the image that hinit doesn't run.
func (x *doctorRun) checkImage(cfg *config.Config) {
	m := cfg.Image
	if m.Version == "" {
		return // the image was built without docker/remove-s6
	}
	exit := "starts again"
	if slices.Contains(cfg.Restart.ParkCodes, 0) {
		exit = "stays down"
	}
	x.findings.OK("image", "version %s; a gateway that exits with code 0 by itself %s", m.Version, exit)
	switch {
	case cfg.Boot.PreparedBy == config.PreparedByImage:
		x.findings.OK("image", "its own boot script prepares the data directory (HINIT_BOOT=image)")
	case len(m.UnknownCommands) > 0:
		x.findings.Warning("image", "hinit leaves out what it does not know of the boot scripts of version %s; to run the image's own script, set HINIT_BOOT=image; commands that are left out: %s",
			m.Version, strings.Join(m.UnknownCommands, " | "))
	}
}

// checkVolume asks hinit to examine the data volume. This command doesn't touch the volume, because even SIGKILL can't end a
// process with a thread that waits for a disk.
func (x *doctorRun) checkVolume(answers bool) {
	if !answers {
		x.findings.Warning("home", "not examined, because only a running hinit examines it")
		return
	}
	found, err := x.Client().Examine(context.Background())
	switch {
	case err == nil:
		x.findings = append(x.findings, found...)
	case errors.Is(err, client.ErrNotAllowed):
		x.findings.Warning("home", "only root and the agent's user may let hinit examine the data volume")
	case errors.Is(err, client.ErrBadRequest):
		x.findings.Warning("home", "not examined, because the running hinit is older than this command; to change that: hinit reexec")
	default:
		x.findings.Failed("home", "%v", err)
	}
}

// safeOOMMargin is the difference in oom_score_adj between a service and hinit with which the kernel always kills the service
// first. hinit uses at most an eighth of the memory (tuning.LimitMemory), and the whole memory weighs as much as a difference
// of 1000.
const safeOOMMargin = 125

// checkMemory checks that the kernel would kill a service rather than hinit when memory runs out.
func (x *doctorRun) checkMemory(st client.Status) {
	if group, _ := os.ReadFile("/sys/fs/cgroup/memory.oom.group"); strings.TrimSpace(string(group)) == "1" {
		x.findings.Warning("memory", "memory.oom.group is 1 for this container: when memory runs out the kernel ends all of it")
		return
	}
	own := oomScoreAdj(st.Init.PID)
	for _, s := range st.Services {
		if s.PID != 0 && oomScoreAdj(s.PID) < own+safeOOMMargin {
			x.findings.Warning("memory", "%s has the oom_score_adj %d and hinit %d: with less than %d between them, the kernel may end the container when memory runs out; lower hinit's (docker: --oom-score-adj; a pod: limits equal to requests, or a memory request of an eighth of the node's)", s.Name, oomScoreAdj(s.PID), own, safeOOMMargin)
			return
		}
	}
	if st.Init.FirstOOMVictim != "" {
		x.findings.OK("memory", "when it runs out the kernel takes %s first, and hinit last", st.Init.FirstOOMVictim)
	}
}

func oomScoreAdj(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// checkKernel checks the kernel's limits that a large number of profiles reaches first.
func (x *doctorRun) checkKernel() {
	for _, l := range []struct {
		file string
		min  int
		what string
	}{
		{"fs/inotify/max_user_instances", 16, "when they run out, hinit finds changed profiles after some seconds instead of at once"},
		{"fs/inotify/max_user_watches", 2048, "when they run out, hinit finds changed profiles after some seconds instead of at once"},
		{"kernel/pid_max", 4096, "services can't be started when they run out"},
	} {
		b, err := os.ReadFile("/proc/sys/" + l.file)
		n, bad := strconv.Atoi(strings.TrimSpace(string(b)))
		switch {
		case err != nil || bad != nil:
		case n < l.min:
			x.findings.Warning(l.file, "is %d; %s (sysctl on the host)", n, l.what)
		default:
			x.findings.OK(l.file, "%d", n)
		}
	}
}
