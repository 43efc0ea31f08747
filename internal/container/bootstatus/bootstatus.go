// Package bootstatus holds the information about the boot that a container's status shows. This includes the finished
// steps, warnings, the running hook, and the services that the boot has not registered yet. It also tells callers when the
// boot is over.
//
// It owns a goroutine while [Status.ExpectSoon] reads the profiles.
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

// maxWarnings limits each of the two lists of warnings. A further warning replaces the oldest one of its list.
const maxWarnings = 50

// Status is the status of one boot. Its methods may be called from any goroutine.
type Status struct {
	ended           chan struct{} // closed by End
	profilesToStart atomic.Int64  // number of profiles that the boot is bringing up; 0 at all other times
	hooks           atomic.Int64  // number of hooks that the boot will run
	hook            atomic.Pointer[hook]

	mu       sync.Mutex
	warnings []string // warnings that an agent can't cause
	byAgents []string // warnings that an agent can cause, in any number
	steps    []client.BootStep

	expected         []*supervisor.Service
	profilesExpected chan struct{} // closed when expected includes the profiles; nil until ExpectSoon is called
}

// hook is a running hook.
type hook struct {
	client.BootHook
	began time.Time
}

// New returns the status of a boot that is starting.
func New() *Status { return &Status{ended: make(chan struct{})} }

// Over returns a channel that is closed when the boot is over and all services are known.
func (s *Status) Over() <-chan struct{} { return s.ended }

// End marks the boot as over. Call it once.
func (s *Status) End() { close(s.ended) }

// IsOver reports whether the boot is over.
func (s *Status) IsOver() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Await blocks until the boot is over. pid is the caller's process. If this process belongs to a running hook, Await returns an
// error immediately, because the boot in turn waits for that hook. The argument now returns the current snapshot of the
// supervisor.
func (s *Status) Await(ctx context.Context, pid int, now func() *supervisor.Snapshot) error {
	if s.IsOver() {
		return nil
	}
	for _, v := range now().Services {
		if v.Kind == supervisor.KindHook && proc.InSession(pid, v.PID) {
			return errors.New("the boot waits for the one who asks")
		}
	}
	if !pause.Until(ctx, s.ended) {
		return fmt.Errorf("the boot is not done: %w", context.Cause(ctx))
	}
	return nil
}

// AddWarning adds a warning that no agent can cause. It returns false if the warning is already in the list.
func (s *Status) AddWarning(warning string) bool { return s.remember(&s.warnings, warning) }

// AddAgentWarning adds a warning that an agent can cause. Such warnings have their own list, so they never displace a warning from
// Remember. It returns false if the warning is already in the list.
func (s *Status) AddAgentWarning(warning string) bool { return s.remember(&s.byAgents, warning) }

func (s *Status) remember(list *[]string, warning string) bool {
	warning = supervisor.Shorten(warning) // an agent may have caused it
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(*list, warning) {
		return false
	}
	*list = append(slices.Delete(*list, 0, max(0, len(*list)+1-maxWarnings)), warning)
	return true
}

// Warnings returns both lists of warnings: the result own has the warnings that no agent can cause, agents has the others.
func (s *Status) Warnings() (own, agents []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings), slices.Clone(s.byAgents)
}

// Add adds finished steps to the status.
func (s *Status) Add(steps ...client.BootStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, steps...)
}

// Insert adds a step at the index given as at. Call it for a step that began before steps that were added earlier.
func (s *Status) Insert(at int, step client.BootStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = slices.Insert(s.steps, at, step)
}

// ForgetSteps drops all steps, because the boot is about to repeat them.
func (s *Status) ForgetSteps() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = nil
}

// Steps returns the steps that were added.
func (s *Status) Steps() []client.BootStep {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

// Failed reports whether a step has failed.
func (s *Status) Failed() bool {
	return slices.ContainsFunc(s.Steps(), func(p client.BootStep) bool { return p.Error != "" })
}

// TakeOver restores the state that the program before a re-execution handed over, and marks the boot as over.
func (s *Status) TakeOver(own, agents []string, steps []client.BootStep) {
	s.warnings, s.byAgents, s.steps = own, agents, steps
	s.End()
}

// SetProfiles sets the number of profiles that the boot brings up. The boot passes 0 when all profiles are done.
func (s *Status) SetProfiles(profiles int) { s.profilesToStart.Store(int64(profiles)) }

// Profiles returns the progress of the boot in starting the profiles, or nil before and after this part of the boot. The argument
// up is the number of profiles that already have a gateway.
func (s *Status) Profiles(up int) *client.BootProfiles {
	found := int(s.profilesToStart.Load())
	if found == 0 {
		return nil
	}
	return &client.BootProfiles{Profiles: found, Done: min(up, found)}
}

// Expect sets the services that the boot will register.
func (s *Status) Expect(services []*supervisor.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = services
}

// ExpectSoon calls look in a goroutine, because look may wait for a disk. It adds the services that look returns to the
// expected services.
func (s *Status) ExpectSoon(look func() []*supervisor.Service) {
	looked := make(chan struct{})
	s.mu.Lock()
	s.profilesExpected = looked
	s.mu.Unlock()
	guard.Go("looking at the profiles during the boot", func() {
		defer close(looked)
		found := look()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expected = append(found, s.expected...)
	})
}

// Expected returns the services that the boot will register, as far as they are known. If all is set, it first waits until the
// function given to ExpectSoon has returned, or the boot or ctx ends.
func (s *Status) Expected(ctx context.Context, all bool) []*supervisor.Service {
	s.mu.Lock()
	looked := s.profilesExpected // nil, which blocks for ever, if the boot has not called ExpectSoon, or has no hooks
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
	return slices.Clone(s.expected)
}

// HooksBegin sets the number of hooks that will run.
func (s *Status) HooksBegin(n int) { s.hooks.Store(int64(n)) }

// HookBegins records the hook that runs now.
func (s *Status) HookBegins(name string, number int) {
	s.hook.Store(&hook{client.BootHook{Name: name, Number: number, Of: int(s.hooks.Load())}, time.Now()})
}

// HooksEnd records that all hooks have ended.
func (s *Status) HooksEnd() { s.hook.Store(nil) }

// Hook returns the running hook, or nil if no hook is running.
func (s *Status) Hook() *client.BootHook {
	running := s.hook.Load()
	if running == nil {
		return nil
	}
	h := running.BootHook
	h.Seconds = time.Since(running.began).Seconds()
	return &h
}

// During names the running hook, for a sentence about an event: " while booting: hook 1 of 2 (update.sh), 3s". It returns "" if no
// hook is running.
func (s *Status) During() string {
	if hook := s.Hook(); hook != nil {
		return " while booting" + show.Hook(hook)
	}
	return ""
}
