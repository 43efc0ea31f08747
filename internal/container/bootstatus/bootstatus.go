// Package bootstatus holds what the status of a container shows about its boot: finished steps, warnings, the running hook,
// and services that are not registered yet. Callers can also wait here for the end of the boot.
//
// It owns a goroutine while [Status.ExpectLater] reads the profiles.
package bootstatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// maxWarnings is how many warnings each of the two lists keeps. A further warning replaces the oldest.
const maxWarnings = 50

// Status is the status of one boot. Any goroutine may call its methods.
type Status struct {
	ended           chan struct{} // channel that End closes
	profilesToStart atomic.Int64  // number of profiles that the boot is bringing up; 0 before and after that
	hookCount       atomic.Int64  // number of hooks that the boot will run
	hook            atomic.Pointer[hook]

	mu            sync.Mutex
	warnings      []string // warnings that an agent can't cause
	agentWarnings []string // warnings that an agent can cause, in any number
	steps         []client.BootStep

	expectedServices []*supervisor.Service
	// channel that is closed when expected contains the gateways, too; nil until ExpectLater is called
	profilesExpected <-chan struct{}
}

// hook is a running hook, with the time of its start.
type hook struct {
	client.BootHook
	startedAt time.Time
}

// New returns the status of a boot that begins now.
func New() *Status { return &Status{ended: make(chan struct{})} }

// Ended returns a channel that is closed when the boot has ended and all services are known.
func (s *Status) Ended() <-chan struct{} { return s.ended }

// End marks the boot as ended. Call it once.
func (s *Status) End() { close(s.ended) }

// HasEnded reports whether the boot has ended.
func (s *Status) HasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// AwaitEnd blocks until the boot has ended. pid is the process of the client that asks. If this process belongs to a running
// hook, AwaitEnd returns an error at once, because the boot waits for that hook. now returns the present snapshot of the
// supervisor.
func (s *Status) AwaitEnd(ctx context.Context, pid int, now func() *supervisor.Snapshot) error {
	if s.HasEnded() {
		return nil
	}
	if slices.ContainsFunc(now().Services, func(v *supervisor.Service) bool { return v.Kind == supervisor.KindHook && proc.InSession(pid, v.PID) }) {
		return errors.New("the boot waits for the one who asks")
	}
	if !pause.Until(ctx, s.ended) {
		return fmt.Errorf("the boot is not done: %w", context.Cause(ctx))
	}
	return nil
}

// AddWarning adds a warning that no agent can cause. It returns false if the list has it already.
func (s *Status) AddWarning(warning string) bool { return s.addWarning(&s.warnings, warning) }

// AddAgentWarning adds a warning that an agent can cause. Such warnings have a separate list, so that an agent can't push out
// the other warnings. AddAgentWarning returns false if the list already has the warning.
func (s *Status) AddAgentWarning(warning string) bool { return s.addWarning(&s.agentWarnings, warning) }

func (s *Status) addWarning(list *[]string, warning string) bool {
	warning = supervisor.ShortenText(warning) // an agent may have chosen the text
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(*list, warning) {
		return false
	}
	*list = append(slices.Delete(*list, 0, max(0, len(*list)+1-maxWarnings)), warning)
	return true
}

// Warnings returns both lists: own has the warnings that no agent can cause, and agents has the warnings that agents can cause.
func (s *Status) Warnings() (own, agents []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings), slices.Clone(s.agentWarnings)
}

// AddSteps adds finished steps to the status.
func (s *Status) AddSteps(steps ...client.BootStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, steps...)
}

// InsertStep adds a finished step at an index, because it began before steps that are in the list already.
func (s *Status) InsertStep(at int, step client.BootStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = slices.Insert(s.steps, at, step)
}

// ForgetSteps drops all steps, because they are about to be repeated.
func (s *Status) ForgetSteps() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = nil
}

// Steps returns the finished steps in order.
func (s *Status) Steps() []client.BootStep {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

// Failed reports whether a step has failed.
func (s *Status) Failed() bool {
	return slices.ContainsFunc(s.Steps(), func(p client.BootStep) bool { return p.Error != "" })
}

// TakeOver restores the status from the program before a re-execution. The boot has then ended.
func (s *Status) TakeOver(own, agents []string, steps []client.BootStep) {
	s.warnings, s.agentWarnings, s.steps = own, agents, steps
	s.End()
}

// SetProfiles sets how many profiles the boot is bringing up. 0 means that all are up.
func (s *Status) SetProfiles(profiles int) { s.profilesToStart.Store(int64(profiles)) }

// ProfilesProgress returns how many profiles the boot must bring up, and up, the number of those that have a gateway. It returns
// nil unless the boot is bringing up profiles now.
func (s *Status) ProfilesProgress(up int) *client.BootProfiles {
	found := int(s.profilesToStart.Load())
	if found == 0 {
		return nil
	}
	return &client.BootProfiles{Profiles: found, Done: min(up, found)}
}

// SetExpected sets the services that the boot will register. The status shows them until they are registered.
func (s *Status) SetExpected(services []*supervisor.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expectedServices = services
}

// ExpectLater adds services to the expected ones as soon as the function look returns them. It calls look in a goroutine,
// because look may wait for a disk.
func (s *Status) ExpectLater(find func() []*supervisor.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profilesExpected = guard.GoWithDone("looking at the profiles during the boot", func() {
		found := find()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expectedServices = append(found, s.expectedServices...)
	})
}

// ExpectedServices returns the services that the boot will register, as far as they are known. If all is set, it first waits for
// the function of ExpectLater, the end of the boot, or the end of ctx.
func (s *Status) ExpectedServices(ctx context.Context, all bool) []*supervisor.Service {
	s.mu.Lock()
	looked := s.profilesExpected // nil if ExpectLater was not called; a nil channel blocks for ever
	s.mu.Unlock()
	if all {
		select {
		case <-looked:
		case <-s.ended:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.expectedServices)
}

// SetHookCount sets how many hooks will run.
func (s *Status) SetHookCount(n int) { s.hookCount.Store(int64(n)) }

// HookBegins records which hook runs now.
func (s *Status) HookBegins(name string, number int) {
	s.hook.Store(&hook{client.BootHook{Name: name, Number: number, Total: int(s.hookCount.Load())}, time.Now()})
}

// HooksEnd records that all hooks have ended.
func (s *Status) HooksEnd() { s.hook.Store(nil) }

// HookProgress returns the running hook, or nil if no hook is running.
func (s *Status) HookProgress() *client.BootHook {
	running := s.hook.Load()
	if running == nil {
		return nil
	}
	h := running.BootHook
	h.Seconds = time.Since(running.startedAt).Seconds()
	return &h
}

// HookText names the running hook, for the end of a log message: " while booting: hook 1 of 2 (update.sh), 3s". It returns ""
// if no hook is running.
func (s *Status) HookText() string {
	if hook := s.HookProgress(); hook != nil {
		return " while booting" + show.HookText(hook)
	}
	return ""
}
