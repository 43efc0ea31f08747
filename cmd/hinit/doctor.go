package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/version"
	"hinit/profiles"
)

func doctorVerb() verb {
	return verb{
		name: "doctor", args: "[--json]", summary: "check what commonly goes wrong, and say what to do about it",
		help: "The exit code is 1 when a check fails; a warning alone is 0.",
		run:  doctor,
	}
}

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	Result string `json:"result"` // ok, warning, failed
	Detail string `json:"detail"`
}

type examination struct {
	*terminal
	findings []finding
}

func (x *examination) ok(check, format string, args ...any) {
	x.findings = append(x.findings, finding{check, "ok", fmt.Sprintf(format, args...)})
}

func (x *examination) warning(check, format string, args ...any) {
	x.findings = append(x.findings, finding{check, "warning", fmt.Sprintf(format, args...)})
}

func (x *examination) failed(check, format string, args ...any) {
	x.findings = append(x.findings, finding{check, "failed", fmt.Sprintf(format, args...)})
}

func doctor(t *terminal, c *call) int {
	asJSON := c.flags.Bool("json", false, "print JSON")
	if _, code, ok := c.parse(t, 0, 0); !ok {
		return code
	}
	x := &examination{terminal: t}
	plain := x.init()
	options := config.Options{Env: t.env}
	if plain != "" {
		options.Path, options.Plain = plain, true
	}
	switch cfg, err := config.Load(options); {
	case err != nil:
		x.failed("configuration", "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	case plain != "":
		x.warnings(cfg) // there is no agent
	default:
		x.configuration(cfg)
	}
	x.kernel()
	if *asJSON {
		if err := writeJSON(t.out, x.findings); err != nil {
			return t.failed("examine this container", err)
		}
	} else {
		tw := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
		for _, f := range x.findings {
			fmt.Fprintf(tw, "%s\t%s\t%s\n", f.Result, show.Name(f.Check), show.Line(f.Detail))
		}
		if err := tw.Flush(); err != nil {
			return t.failed("examine this container", err)
		}
	}
	for _, f := range x.findings {
		if f.Result == "failed" {
			return exitFailed
		}
	}
	return exitDone
}

// init checks the running init and what it says of itself. It returns the file of a plain supervisor, "" for any other init.
func (x *examination) init() (plain string) {
	cl, err := x.dial()
	if err != nil {
		x.failed("init", "%v", err)
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), shortWait)
	defer cancel()
	st, err := cl.Status(ctx)
	if err != nil {
		x.failed("init", "%v", err)
		return ""
	}
	x.ok("init", "pid %d, version %s", st.Init.PID, st.Init.Version)
	x.binary(st.Init)
	for _, w := range st.Init.Warnings {
		x.warning("boot", "%s", w)
	}
	for _, s := range st.Services {
		x.service(s)
	}
	if visible(st.Init) {
		x.memory(st)
		if n := unburied(st.Init.PID, burialTime); n > 0 {
			x.failed("zombies", "%d ended processes are not buried", n)
		}
	}
	return st.Init.Plain
}

// binary checks whether the init runs what lies in its place, and what this command is.
func (x *examination) binary(in client.Init) {
	if visible(in) && in.BinaryID != "" && !runs(in, in.Binary) {
		x.warning("binary", "the init does not run what %s holds now; to change that without a restart: hinit reexec", in.Binary)
		return
	}
	if own := version.Get().String(); own != in.Version {
		x.warning("binary", "this command is %s and the init is %s, from %s; put one binary in both places, then: hinit reexec", own, in.Version, in.Binary)
	}
}

func (x *examination) service(s client.Service) {
	switch {
	case s.CrashLoop:
		last := show.LastExit(s.LastExit)
		if s.Problem != "" {
			last += "; " + s.Problem
		}
		x.failed(s.Name, "crash-loop, %d failures in a row, last: %s; see: hinit logs %s", s.ConsecutiveFailures, last, s.Name)
	case s.State == "parked", s.State == "failed":
		x.failed(s.Name, "%s: %s; see: hinit logs %s", s.State, s.Reason, s.Name)
	case s.Problem == "":
	case s.State == client.StateUp && s.Ready:
		x.failed(s.Name, "%s; see: hinit logs %s", s.Problem, s.Name)
	case s.State == client.StateUp:
		x.warning(s.Name, "not ready: %s", s.Problem)
	default:
		x.warning(s.Name, "%s: %s", s.State, s.Problem)
	}
}

// visible reports whether the process that has the init's pid here is the init: seen from outside its PID namespace, it
// is another one.
func visible(in client.Init) bool {
	start, err := profiles.StartTime(in.PID)
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return false
	}
	const ticks = 100 // per second in /proc, whatever the kernel's own clock does (proc_pid_stat(5))
	age := time.Duration(now.Nano()) - time.Duration(start)*time.Second/ticks
	return (age - time.Since(in.StartedAt)).Abs() < 2*time.Second
}

// burialTime lets the init bury what has just ended. It needs a fraction of it.
func burialTime() {
	time.Sleep(500 * time.Millisecond) //nolint:forbidigo // nothing tells of a burial
}

// unburied counts the children of a process that have ended and stay unburied for a while. If there are none it does not wait.
func unburied(parent int, wait func()) int {
	first := zombies(parent)
	if len(first) == 0 {
		return 0
	}
	wait()
	second := zombies(parent)
	maps.DeleteFunc(first, func(id string, _ bool) bool { return !second[id] })
	return len(first)
}

// zombies are the children of a process that have ended and are not buried, each known by its pid and the time it was started.
func zombies(parent int) map[string]bool {
	found := make(map[string]bool)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		const threads, started = 17, 19 // fields 20 and 22 of proc_pid_stat(5), the first one here being the third
		// With more threads it is only the first of them that has ended.
		if len(f) > started && f[0] == "Z" && f[threads] == "1" && f[1] == strconv.Itoa(parent) {
			found[name+" "+f[started]] = true
		}
	}
	return found
}

// warnings checks the configuration itself.
func (x *examination) warnings(cfg *config.Config) {
	from := "defaults and environment"
	if cfg.Path != "" {
		from = cfg.Path
	}
	x.ok("configuration", "%s", from)
	for _, w := range slices.Concat(cfg.Warnings, config.UnknownVariables(os.Environ())) {
		x.warning("configuration", "%s", w)
	}
}

// configuration checks what the configuration points at.
func (x *examination) configuration(cfg *config.Config) {
	x.warnings(cfg)
	agent, err := lookupAgent(cfg)
	if err != nil {
		x.failed("user", "%v", err)
		return
	}
	x.ok("user", "%s is uid %d, gid %d", cfg.Agent.User, agent.user.UID, agent.user.GID)
	if err := unix.Access(cfg.Agent.Binary, unix.X_OK); err != nil {
		x.failed("agent", "cannot execute %q: %v; set agent.binary in hinit.yaml", cfg.Agent.Binary, err)
	} else {
		x.ok("agent", "%s", cfg.Agent.Binary)
	}
	volume := &examination{terminal: x.terminal} // its own: where the disk hangs, it goes on without us
	ctx, cancel := context.WithTimeout(context.Background(), lookPatience)
	defer cancel()
	if err := blocking.Wait(ctx, "the look at the data volume", func() error { volume.volume(cfg, agent); return nil }); err != nil {
		x.failed("home", "%q or %q does not answer within %s", cfg.Home, cfg.Logs.Dir, lookPatience)
		return
	}
	x.findings = append(x.findings, volume.findings...)
}

// lookPatience is how long the data volume may take to be looked at.
const lookPatience = 10 * time.Second

// volume checks the data volume. It blocks on the disk.
func (x *examination) volume(cfg *config.Config, agent identity) {
	for _, place := range [][2]string{{"home", cfg.Home}, {"logs", cfg.Logs.Dir}} {
		check, dir := place[0], place[1]
		if euid := os.Geteuid(); euid != 0 && uint32(euid) != agent.user.UID {
			x.warning(check, "only root or the agent's user can tell whether the agent can write in %q", dir)
			continue
		}
		if err := agent.actor.Do(func() error { return writable(dir) }); err != nil {
			x.failed(check, "the agent's user cannot write in %q: %v", dir, err)
		} else {
			x.ok(check, "%s is writable for the agent's user", dir)
		}
	}
	var fs unix.Statfs_t
	if unix.Statfs(cfg.Home, &fs) == nil {
		free := fs.Bavail * uint64(fs.Bsize)
		if free < 100<<20 {
			x.warning("space", "%.0f MB are free in %q", float64(free)/1e6, cfg.Home)
		} else {
			x.ok("space", "%.0f MB are free in %q", float64(free)/1e6, cfg.Home)
		}
	}
	_, warnings, err := profiles.Open(cfg.Home, agent.actor, cfg.Profiles.Marker).Limit(cfg.Profiles.Max).Discover()
	if err != nil {
		x.failed("profiles", "%v", err)
	}
	for _, w := range warnings {
		x.warning("profiles", "%s", w)
	}
}

func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".hinit-doctor-")
	if err != nil {
		return errors.Unwrap(err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// kernel checks the limits that many profiles run into.
// memory says what the kernel does when memory runs out.
func (x *examination) memory(st client.Status) {
	own := oomScoreAdj(st.Init.PID)
	for _, s := range st.Services {
		if s.PID != 0 && oomScoreAdj(s.PID) <= own {
			x.warning("memory", "%s has the oom_score_adj %d and hinit %d: when memory runs out the kernel may end the container; start it with a lower --oom-score-adj", s.Name, oomScoreAdj(s.PID), own)
			return
		}
	}
	if group, _ := os.ReadFile("/sys/fs/cgroup/memory.oom.group"); strings.TrimSpace(string(group)) == "1" {
		x.warning("memory", "memory.oom.group is 1 for this container: when memory runs out the kernel ends all of it")
		return
	}
	if st.Init.OOMFirst != "" {
		x.ok("memory", "when it runs out the kernel takes %s first, and hinit last", st.Init.OOMFirst)
	}
}

func oomScoreAdj(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

func (x *examination) kernel() {
	for _, l := range []struct {
		file string
		min  int
		what string
	}{
		{"fs/inotify/max_user_instances", 16, "profiles are looked at every few seconds instead of at once when they run out"},
		{"fs/inotify/max_user_watches", 2048, "profiles are looked at every few seconds instead of at once when they run out"},
		{"kernel/pid_max", 4096, "services can't be started when they run out"},
	} {
		b, err := os.ReadFile("/proc/sys/" + l.file)
		n, bad := strconv.Atoi(strings.TrimSpace(string(b)))
		switch {
		case err != nil || bad != nil:
		case n < l.min:
			x.warning(l.file, "is %d; %s (sysctl on the host)", n, l.what)
		default:
			x.ok(l.file, "%d", n)
		}
	}
}
