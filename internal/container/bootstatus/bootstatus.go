// Package bootstatus holds what status shows of the boot: steps, warnings, the hook that runs, and services that the boot has not
// come to yet.
//
// Only status reads it. It owns a goroutine while [Status.Look] looks at the profiles.
package bootstatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// mostWarnings is how many warnings of each of the two sources are kept. The oldest of the same source goes first.
const mostWarnings = 50

// Status is the status of one boot. Its methods may be called from any goroutine.
type Status struct {
	over chan struct{} // closed when all services are known

	mu       sync.Mutex
	warnings []string // that an agent cannot cause
	agents   []string // that an agent can cause, as many as it likes
	steps    []client.BootStep
	found    int // profiles that the boot brings up; 0 before it has read them and when it is done

	expected []*supervisor.Service
	looked   chan struct{} // closed when the profiles are among them; nil while no look is under way
	hooks    int           // how many the boot has
	hook     *client.BootHook
	since    time.Time // of the hook that runs
}

// New is the status of a boot that begins.
func New() *Status { return &Status{over: make(chan struct{})} }

// Over is closed when the boot is over and all services are known.
func (s *Status) Over() <-chan struct{} { return s.over }

// End says that it is.
func (s *Status) End() { close(s.over) }

// IsOver reports whether it is.
func (s *Status) IsOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// Await waits for the end of the boot, but not for a process of the boot itself, such as a hook that asks.
func (s *Status) Await(ctx context.Context, pid int, now func() *supervisor.Snapshot) error {
	if s.IsOver() {
		return nil
	}
	for _, v := range now().Services {
		if v.Kind == supervisor.KindHook && proc.InSession(pid, v.PID) {
			return errors.New("the boot waits for the one who asks")
		}
	}
	select {
	case <-s.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the boot is not done: %w", context.Cause(ctx))
	}
}

// Remember adds a warning. It returns false for one that is there already.
func (s *Status) Remember(warning string) bool { return s.remember(&s.warnings, warning) }

// RememberAgents does the same for a warning that an agent can cause. It pushes out no warning of Remember.
func (s *Status) RememberAgents(warning string) bool { return s.remember(&s.agents, warning) }

func (s *Status) remember(list *[]string, warning string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(*list, warning) {
		return false
	}
	*list = append(slices.Delete(*list, 0, max(0, len(*list)+1-mostWarnings)), warning)
	return true
}

// Warnings returns the warnings that were remembered, and apart from them those that an agent can cause.
func (s *Status) Warnings() (own, agents []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings), slices.Clone(s.agents)
}

// Add adds steps that are done.
func (s *Status) Add(steps ...client.BootStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, steps...)
}

// Insert adds a step that began before others that were added.
func (s *Status) Insert(at int, step client.BootStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = slices.Insert(s.steps, at, step)
}

// Again forgets the steps: they are done once more.
func (s *Status) Again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = nil
}

// Steps are those that were added.
func (s *Status) Steps() []client.BootStep {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

// Failed reports whether a step has failed.
func (s *Status) Failed() bool {
	return slices.ContainsFunc(s.Steps(), func(p client.BootStep) bool { return p.Error != "" })
}

// divider stands between the two kinds of warnings that are handed over. An earlier program shows it.
const divider = "an agent can cause the warnings below"

// HandOver returns all warnings for TakeOver.
func (s *Status) HandOver() []string {
	own, agents := s.Warnings()
	return slices.Concat(own, []string{divider}, agents)
}

// TakeOver takes the status of a boot over that an earlier program of PID 1 had. Without a divider all warnings are root's.
func (s *Status) TakeOver(warnings []string, steps []client.BootStep) {
	s.warnings, s.steps = warnings, steps
	if at := slices.Index(warnings, divider); at >= 0 { // an agent's text cannot come before it
		s.warnings, s.agents = slices.Clone(warnings[:at]), slices.Clone(warnings[at+1:])
	}
	s.End()
}

// Found says how many profiles the boot brings up, 0 when it is done with them.
func (s *Status) Found(profiles int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = profiles
}

// Profiles is how far the boot has come with the profiles, so many of which have a gateway now; nil when it is done.
func (s *Status) Profiles(up int) *client.BootProfiles {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == 0 {
		return nil
	}
	return &client.BootProfiles{Profiles: s.found, Done: min(up, s.found)}
}

// Expect replaces the services that the boot will register.
func (s *Status) Expect(services []*supervisor.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected = services
}

// Look finds more of them, and returns at once. look may block on a disk.
func (s *Status) Look(look func() []*supervisor.Service) {
	looked := make(chan struct{})
	s.mu.Lock()
	s.looked = looked
	s.mu.Unlock()
	guard.Go("looking at the profiles during the boot", func() {
		defer close(looked)
		found := look()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expected = append(found, s.expected...)
	})
}

// Expected returns the services that the boot will register, as far as is known. With all it waits for a look that is under way,
// for the end of the boot or of ctx.
func (s *Status) Expected(ctx context.Context, all bool) []*supervisor.Service {
	s.mu.Lock()
	looked := s.looked // nil: the boot has not got so far, or it has no hooks to wait for and is over soon
	s.mu.Unlock()
	if all {
		select {
		case <-looked:
		case <-s.over:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.expected)
}

// HooksBegin says how many hooks will run.
func (s *Status) HooksBegin(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = n
}

// HookBegins says which hook runs now.
func (s *Status) HookBegins(name string, number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook, s.since = &client.BootHook{Name: name, Number: number, Of: s.hooks}, time.Now()
}

// HooksEnd says that no hook runs any more.
func (s *Status) HooksEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = nil
}

// Hook is the hook that runs, nil when none does.
func (s *Status) Hook() *client.BootHook {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hook == nil {
		return nil
	}
	h := *s.hook
	h.Seconds = time.Since(s.since).Seconds()
	return &h
}
