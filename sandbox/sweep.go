package sandbox

import (
	"cmp"
	"context"
	"time"
)

// SweepOptions selects the containers that a sweep removes.
type SweepOptions struct {
	MaxAge time.Duration // Minimum age; 0: [MinOrphanAge] of Options.Lifetime.
	// AnyAge selects every container that doesn't run, however young it is. Only a container that was never started is kept
	// for a minute, because another process may be about to start it.
	AnyAge  bool
	Profile string // Profile to sweep; "" for all profiles of this volume.
	DryRun  bool   // Report what would be removed, and remove nothing.
}

// Removed is a container that a sweep has removed, or would remove in a dry run.
type Removed struct {
	Container
	Task    string        `json:"task"`
	Profile string        `json:"profile"`
	Age     time.Duration `json:"age"`
	Why     string        `json:"why"`             // reason for the removal
	Error   string        `json:"error,omitempty"` // Reason why the removal failed; empty if it succeeded.
}

// isOurs reports whether a container is a sandbox of this volume, by its label LabelVolume. A container that the agent has
// made without hinit lacks this label. Such a container is ours if it has the labels of a task and of the profile.
func (m *Manager) isOurs(c Container, profile string) bool {
	if volume, has := c.Labels[LabelVolume]; has {
		return volume == m.store.id
	}
	return c.Labels[LabelTask] != "" && c.Labels[LabelProfile] == Sanitise(profile)
}

// List describes all sandboxes of this volume, whichever profile and process they belong to.
func (m *Manager) List(ctx context.Context) ([]Description, error) {
	list, err := m.engine.List(ctx, map[string]string{LabelAgent: "1"})
	if err != nil {
		return nil, err
	}
	var out []Description
	for _, c := range list {
		if !m.isOurs(c, m.opts.Profile) {
			continue
		}
		d := m.describe(c)
		m.mu.Lock()
		for _, s := range m.usedSandboxes() {
			s.addLocalDetails(&d)
		}
		m.mu.Unlock()
		out = append(out, d)
	}
	return out, nil
}

// MinOrphanAge returns the age from which an unused container counts as an orphan: twice the lifetime, at least two minutes.
func MinOrphanAge(lifetime time.Duration) time.Duration { return 2 * max(time.Minute, lifetime) }

// EarlierTime returns the earlier of two times. A zero time means never.
func EarlierTime(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// recheckInterval is the pause before a sweep checks a container again that it could not inspect or
// remove.
const recheckInterval = time.Minute

// Sweep removes the unused containers of this volume: each ended, created or dead container that has reached the minimum age.
// It never touches a container with another volume's label. A container without a volume's label may belong to another user's
// agent, so Sweep removes it only if it has ended. next is the time at which the next container reaches the age, or zero if
// there is none.
func (m *Manager) Sweep(ctx context.Context, options SweepOptions) (out []Removed, next time.Time, err error) {
	options.MaxAge = cmp.Or(options.MaxAge, MinOrphanAge(m.opts.Lifetime))
	labels := map[string]string{LabelAgent: "1"}
	if options.Profile != "" {
		labels[LabelProfile] = Sanitise(options.Profile)
	}
	begin := time.Now()
	list, err := m.engine.List(ctx, labels)
	if err != nil {
		return nil, next, err
	}
	for _, c := range list {
		if !m.isOurs(c, cmp.Or(options.Profile, m.opts.Profile)) {
			continue
		}
		r, due := m.reapContainer(ctx, c, options)
		if r != nil {
			out = append(out, *r)
		}
		next = EarlierTime(next, due)
	}
	if options.Profile != "" || options.DryRun { // The list would be incomplete, and the records of the other containers must stay.
		return out, next, nil
	}
	// Also list the containers without an agent's labels.
	all, err := m.engine.List(ctx, map[string]string{LabelVolume: m.store.id})
	if err != nil {
		return out, next, err
	}
	m.store.sweepRecords(append(list, all...), begin.Add(-options.MaxAge))
	return out, next, nil
}

// reapContainer removes one container if it is unused, and returns a report. If it keeps the container, the report is nil,
// and the time says when to check it again. It decides under the lock of the container's key, because a command may have
// started in the container meanwhile.
func (m *Manager) reapContainer(ctx context.Context, c Container, options SweepOptions) (*Removed, time.Time) {
	own := c.Labels[LabelVolume] == m.store.id
	if c.State != Exited && (!own && !options.AnyAge || c.State != Created && c.State != Dead) {
		return nil, time.Time{}
	}
	again := time.Now().Add(recheckInterval)
	step, cancel := context.WithTimeout(ctx, engineAnswerTimeout)
	defer cancel()
	unlock, err := m.Lock(step, c.Labels)
	if err != nil {
		return nil, again
	}
	defer unlock()
	now, err := m.engine.Inspect(step, c.ID)
	if err != nil || now.State != c.State {
		return nil, again
	}
	r := &Removed{Container: now, Task: c.Labels[LabelTask], Profile: c.Labels[LabelProfile], Why: "it has ended, and was not used since"}
	since := now.Finished
	if now.State == Created {
		r.Why = "it was made and never started"
	}
	if since.IsZero() && now.State != Exited {
		since = now.Created
	}
	if options.AnyAge {
		r.Why, since, options.MaxAge = "it does not run", now.Created, 0
		if now.State == Created {
			options.MaxAge = time.Minute
		}
	}
	if since.IsZero() {
		return nil, time.Time{} // Keep a container of unknown age.
	}
	r.Age = time.Since(since)
	if r.Age < options.MaxAge {
		return nil, since.Add(options.MaxAge)
	}
	if options.DryRun {
		return r, time.Time{}
	}
	if err := m.engine.Remove(ctx, c.ID); err != nil {
		r.Error = err.Error()
		m.opts.warn(err.Error())
		return r, again
	}
	m.store.removeRecord(now.Name)
	return r, time.Time{}
}
