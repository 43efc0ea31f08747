package profiles

import (
	"time"

	"hinit/internal/procstat"
)

// Internal names, limits and state for external tests.
const (
	IntentFile    = intentFile
	BootLogMax    = maxBootLog
	DecisionBatch = decisionBatch
	MaxState      = maxState
)

var (
	Alive       = processRuns
	IsIntent    = isIntent
	KernelBoot  = kernelBootID
	ProcessStat = processStat
)

// SetClock replaces both clocks of the store. The time since the boot advances with the time of day.
func (s *Store) SetClock(now func() time.Time) {
	s.now = now
	s.uptime = func() time.Duration { return procstat.SinceBoot() + time.Until(now()) }
}

// StepClock sets the time of day forward or back, and lets the time since the boot advance by passed.
func (s *Store) StepClock(step, passed time.Duration) {
	s.now = func() time.Time { return time.Now().Add(step + passed) }
	s.uptime = func() time.Duration { return procstat.SinceBoot() + passed }
}

func (s *Store) Locks() int { return len(s.locks) }

// SetDesired writes the operator's intent and syncs it, so that it survives a crash of the machine.
func (s *Store) SetDesired(profile, want string) error {
	defer s.lock(profile)()
	return s.setDesired(profile, want, true)
}

// Set records an operator's order and syncs it, so that it survives a crash of the machine.
func (in *Intents) Set(profile, want string) error {
	sync, err := in.Record(profile, want)
	if err != nil {
		return err
	}
	return sync()
}

func (w *Watcher) Done() <-chan struct{} { return w.done }
