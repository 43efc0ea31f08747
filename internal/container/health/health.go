// Package health watches the health of services and acts on it. It connects package probe, which runs checks and finds deaf
// gateways (up, but without reaction), with the notification sockets of services. It enforces memory limits and disk quotas,
// and ends the least important service when the container runs out of memory. It prepares each service before its start,
// reports to the supervisor, and collects results for the status.
//
// The package owns a goroutine for memory limits, up to three for quotas, and one while it reads the output of a check.
// Packages probe and notify have their own goroutines.
package health

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/notify"
	"hinit/internal/pause"
	"hinit/internal/probe"
	"hinit/internal/proc"
	"hinit/logrotate"
	"hinit/profiles"
	"hinit/supervisor"
)

// Options are the parts of hinit that a Health calls. Any goroutine may call the functions.
type Options struct {
	Config         func() *config.Config
	Loop           *supervisor.Loop
	Store          *profiles.Store
	Agent          boot.Agent
	ServicesOnly   bool                                // hinit is a plain supervisor, which has no gateways
	ServiceLog     func(service string) *logrotate.Log // returns the log of a service, or nil
	SocketDir      func() string                       // returns the directory for sockets of services; "" for none
	Warn           func(format string, args ...any)    // writes a warning, which the status also shows
	OnLeaseMessage func(words string)                  // receives each message of the lease program about the lease
}

// Health watches the health of all services. Any goroutine may call its methods.
type Health struct {
	// MeasureProfiles makes the boot program measure profiles. work is one of the Measure constants of package boot. Package
	// container sets this field before it registers the first service.
	MeasureProfiles func(ctx context.Context, profiles []boot.Gateway, work string) ([]boot.Measurement, error)

	options Options

	checks    *probe.Prober
	deafWatch *probe.DeafWatch
	memory    *memoryWatch
	quota     quotaWatch
	notify    *notify.Hub

	lastUnknownSender atomic.Int64 // time of the last report of reportUnknownSender, in nanoseconds since 1970
}

// New returns the Health of a container without services.
func New(o Options) *Health {
	h := &Health{options: o}
	h.notify = notify.New(h.handleMessage)
	h.checks = probe.New(probe.Options{
		Snapshot: o.Loop.Snapshot, SnapshotChanged: o.Loop.Changed, SupervisorEnded: o.Loop.Ended(), Post: o.Loop.Post,
		Env: func(profile string) (map[string]string, error) { return o.Store.Env(cmp.Or(profile, profiles.Default)) },
		State: func(profile string) (profiles.State, error) {
			return readRunState(o.Loop.Snapshot().Find(profiles.SlotName(profile)), profile, o.Store.ReadState)
		},
		WatchLog: func(service string, seen func([]byte)) {
			if l := o.ServiceLog(service); l != nil {
				l.SetWatcher(seen)
			}
		},
		ReadMessages: h.notify.Drain,
		Deafness:     func(service string) (probe.Deafness, bool) { return h.deafWatch.Deafness(service) },
		Run: func(ctx context.Context, name string, spec proc.Spec) (int, string, error) {
			return h.RunCheck(ctx, name, spec, nil)
		},
	})
	meter := sync.OnceValue(proc.NewMemoryMeter) // only a limit needs the meter
	h.memory = &memoryWatch{
		loop: o.Loop, containerMemory: proc.ReadContainerMemory, measureShared: h.sharedMemory,
		measureServices: func(mains []int) (found []proc.Memory) {
			blocking.Run(blocking.ShortCalls, func() { found = meter().Measure(mains) })
			return found
		},
	}
	h.deafWatch = h.newDeafWatch()
	h.Configure(o.Config())
	return h
}

// Configure applies the settings for memory, quotas and deaf gateways. Changed settings for checks and notification sockets
// take effect when a service is registered again.
func (h *Health) Configure(cfg *config.Config) {
	h.memory.configure(cfg)
	if !h.options.ServicesOnly { // a plain supervisor has no gateways
		h.deafWatch.Configure(cfg.DeafDetectionOf("").CheckPeriod, func(v *supervisor.Service) config.DeafDetection { return cfg.DeafDetectionOf(v.Profile) })
	}
	h.watchQuotas(cfg)
}

// checksOf returns the configured checks of a service.
func checksOf(cfg *config.Config, u *supervisor.Unit) []config.Check {
	switch u.Kind {
	case supervisor.KindGateway:
		return cfg.ChecksOf(u.Profile)
	case supervisor.KindService:
		s := cfg.Services[u.Name]
		return s.AllChecks()
	case supervisor.KindCmd, supervisor.KindHook, supervisor.KindPlaceholder, supervisor.KindRun, supervisor.KindCheck:
	}
	return nil
}

// PrepareUnit prepares the definition of a service for its registration: it adds a notification socket, and says whether checks
// decide about readiness.
func (h *Health) PrepareUnit(u *supervisor.Unit) {
	h.addNotifySocket(u)
	u.HasReadinessChecks = probe.AffectsReadiness(checksOf(h.options.Config(), u))
}

// SetChecks sets the checks of a service. They begin now if it is running, otherwise at its next start.
func (h *Health) SetChecks(u *supervisor.Unit) {
	cfg := h.options.Config()
	checks := checksOf(cfg, u)
	t := probe.Target{Checks: checks, Profile: u.Profile, Spec: u.Spec}
	if len(checks) > 0 {
		t.Actor = h.actorOf(u.Spec.Cred)
		vars := map[string]string{}
		t.Env = cfg.Services[u.Name].Env
		t.MayUseAgentEnv = !h.options.ServicesOnly && h.options.Agent.RunsAs(u.Spec.Cred)
		if u.Kind == supervisor.KindGateway {
			t.Env = maps.Clone(cfg.Agent.Env)
			maps.Copy(t.Env, cfg.Profiles.Overrides[u.Profile].Env)
			if p, err := h.options.Store.Profile(u.Profile); err == nil {
				vars["profile"], vars["profile_home"] = p.Name, p.Home
			}
		}
		t.Expand = func(text string) string { return cfg.ExpandString(text, vars) }
	}
	h.checks.SetChecks(u.Name, t)
}

// actorOf returns the user of a service. The checks of the service access files with this user's rights.
func (h *Health) actorOf(cred *proc.Cred) *fsutil.Actor {
	switch {
	case cred == nil:
		return fsutil.ProcessActor().WithPool(blocking.Volume)
	case h.options.Agent.RunsAs(cred):
		return h.options.Agent.Actor.WithPool(blocking.Volume)
	}
	return fsutil.NewActor(*cred).WithPool(blocking.Volume)
}

// StatusRemark returns a remark on a running service for the status, or "".
func (h *Health) StatusRemark(v *supervisor.Service) string {
	if d, deaf := h.deafWatch.Deafness(v.Name); deaf && isDeafNow(v, d) {
		return probe.DeafPrefix + d.Why
	}
	return cmp.Or(h.quota.statusNotes.get(v.Name), h.quota.shareNotes.get(v.Name), h.memory.statusNotes.get(v.Name))
}

// RecordHeartbeat records that the gateway of a profile has written its state file.
func (h *Health) RecordHeartbeat(profile string) { h.deafWatch.RecordHeartbeat(profile) }

// ResumeDeafSearch resumes the search for deaf gateways, because a service has written output.
func (h *Health) ResumeDeafSearch() { h.deafWatch.Resume() }

// Drop ends the checks of a removed service, and closes its notification socket.
func (h *Health) Drop(service string) {
	h.checks.RemoveChecks(service)
	h.notify.CloseSocket(service)
}

// Handover is the state that a Health passes to the next program when PID 1 re-executes itself.
type Handover struct {
	Checks *probe.Handover  // state of the checks; nil without checks
	Notify *notify.Handover // the notification sockets
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (h *Health) HandOver() Handover { return Handover{h.checks.HandOver(), h.notify.HandOver()} }

// TakeOver restores the state from the previous program. The logs of the services must already be open. It ends running exec
// checks, because nothing would receive their results.
func (h *Health) TakeOver(old Handover, services *supervisor.Handover) {
	for _, s := range h.options.Loop.Snapshot().Services {
		if s.Kind == supervisor.KindCheck {
			h.options.Loop.QueueFirst(supervisor.Evict{Names: []string{s.Name}, Reason: "another image asks again"})
		}
	}
	h.checks.TakeOver(old.Checks)
	for _, u := range services.Units {
		h.SetChecks(u.Unit)
	}
	h.notify.TakeOver(old.Notify) // the sockets come last, because their messages go to the checks
	h.deafWatch.Resume()
}

// PauseChecksUntil pauses the checks of a service. The zero time ends the pause and runs the checks now.
func (h *Health) PauseChecksUntil(service string, paused time.Time) error {
	if h.checks.PauseUntil(service, paused) {
		return nil
	}
	return fmt.Errorf("%s has no checks; write some into hinit.yaml", service)
}

// Checks returns the results of a service's checks, or nil without checks.
func (h *Health) Checks(v *supervisor.Service) []client.Check {
	deaf := h.deafCheck(v)
	found, types, ok := h.checks.Health(v.Name)
	if !ok {
		return deaf
	}
	out := make([]client.Check, len(found.Checks))
	for i := range found.Checks {
		p := &found.Checks[i]
		c := client.Check{Name: p.Rule.Name, Kind: p.Rule.Kind, Type: types[i], State: string(p.Verdict), Since: p.Since, Answer: p.Answer, Failures: p.Failures(), Failed: p.Verdict == probe.Failing}
		if found.IsOnHold(i) && p.Verdict == probe.Pending {
			c.State = client.CheckOnHold
		}
		if !found.Paused.IsZero() {
			c.State, c.Failed = client.CheckPaused, false
		}
		if !p.LastResultAt.IsZero() {
			c.AnsweredAt = &p.LastResultAt
		}
		out[i] = c
	}
	return append(out, deaf...)
}

func readRunState(s *supervisor.Service, profile string, read func(string) (profiles.State, error)) (profiles.State, error) {
	st, err := read(profile)
	if st.StartTime != 0 && s != nil && s.PID != 0 && !proc.InRun(st.PID, st.StartTime, s.PID) {
		return profiles.State{}, errors.New(profiles.StateFile + " says nothing of this run yet")
	}
	return st, err
}

// newDeafWatch returns the search for deaf gateways, connected to the supervisor and the store of profiles.
func (h *Health) newDeafWatch() *probe.DeafWatch {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	return probe.NewDeafWatch(probe.DeafOptions{
		Snapshot: h.options.Loop.Snapshot, SupervisorEnded: h.options.Loop.Ended(), Children: children, Post: h.options.Loop.Post,
		Lines: func(service string) uint64 {
			if l := h.options.ServiceLog(service); l != nil {
				return l.Stats().Lines
			}
			return 0
		},
		EachEnv: func(profiles []string, each func(string, map[string]string)) error {
			cfg := h.options.Config()
			return h.options.Store.EachEnv(profiles, func(profile string, env map[string]string) {
				maps.Copy(env, cfg.Agent.Env) // variables of hinit.yaml override the .env
				maps.Copy(env, cfg.Profiles.Overrides[profile].Env)
				each(profile, env)
			})
		},
		State: h.options.Store.ReadState,
	})
}

// isDeafNow reports whether the deafness d concerns the present run of a gateway. It is false if a check of the gateway already
// reports this deafness.
func isDeafNow(v *supervisor.Service, d probe.Deafness) bool {
	return !d.HandledByCheck && v.State == supervisor.Up && v.Run == d.Run
}

// deafCheck returns the entry of a deaf gateway for the checks in the status. The list is empty for any other service.
func (h *Health) deafCheck(v *supervisor.Service) []client.Check {
	d, deaf := h.deafWatch.Deafness(v.Name)
	if !deaf || !isDeafNow(v, d) {
		return nil
	}
	return []client.Check{{
		Name: config.CheckDeaf, Kind: config.CheckAlive, Type: config.CheckDeaf, State: string(probe.Failing), Since: d.Since, Failures: d.Failures, Failed: true, Answer: d.Why,
	}}
}

const (
	// maxCheckOutput is the maximum number of bytes that hinit reads from an exec check. A check that writes more gets SIGPIPE.
	maxCheckOutput = 64 << 10
	// checkKillGrace is the time between SIGTERM and SIGKILL for the leftover processes of a check.
	checkKillGrace = 100 * time.Millisecond
)

// RunCheck runs an exec check once, as a task of the supervisor, for [probe.Options].Run. It returns the exit code and the
// last line of output. stderr gets the standard error of the check; if it is nil, the standard error belongs to the output. If ctx
// ends first, RunCheck kills all processes of the check.
func (h *Health) RunCheck(ctx context.Context, name string, spec proc.Spec, stderr *os.File) (code int, last string, err error) {
	// The supervisor may still be killing an earlier process of this check. Wait until it has forgotten that process.
	// Otherwise it would report the end of that process as the end of the new one.
	for changed := h.options.Loop.Changed(); h.options.Loop.Snapshot().Find(name) != nil; changed = h.options.Loop.Changed() {
		if !pause.Until(ctx, changed) {
			return 0, "", context.Cause(ctx)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, "", fmt.Errorf("cannot make a pipe: %w", err)
	}
	read := make(chan string, 1)
	guard.Go("reading the output of a check", func() {
		data, _ := io.ReadAll(io.LimitReader(r, maxCheckOutput)) // if the deadline passes, use the bytes that were read until then
		_ = r.Close()
		lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
		read <- strings.TrimSpace(string(lines[len(lines)-1]))
	})
	defer r.Close()
	// The checked service is already running, so the unit waits for no need. Wait for the supervisor even if ctx ends: it still
	// needs the pipe, and the code below must end a check that starts late.
	err = h.options.Loop.Register(context.WithoutCancel(ctx), supervisor.Unit{
		Name: name, Kind: supervisor.KindCheck, Spec: spec, StdOverrides: [3]*os.File{1: w, 2: cmp.Or(stderr, w)},
		Policy: supervisor.Policy{SingleRun: true, StopSignal: int(unix.SIGTERM), Grace: checkKillGrace},
	}, supervisor.WantUp)
	_ = w.Close()
	if err != nil {
		return 0, "", err
	}
	code, err = supervisor.AwaitTask(ctx, h.options.Loop, name)
	if ctx.Err() != nil {
		h.options.Loop.Post(supervisor.Evict{Names: []string{name}, Reason: "its time is over"})
	} else {
		h.options.Loop.Post(supervisor.Remove{Name: name})
	}
	if err != nil {
		return 0, "", err
	}
	_ = r.SetReadDeadline(time.Now().Add(checkKillGrace)) // a leftover process of the check may hold the pipe open
	return code, <-read, nil
}
