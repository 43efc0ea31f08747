package profiles

import "time"

// These give the tests internal names and limits, the clock, and the state in memory.
const (
	AskedFile       = intentFile
	BootLogMax      = bootLogMax
	DecidedTogether = decidedTogether
	MaxState        = maxState
)

var (
	Alive       = alive
	IsIntent    = isIntent
	KernelBoot  = kernelBootID
	ProcessStat = processStat
)

func (s *Store) SetClock(now func() time.Time) { s.now = now }

func (s *Store) Locks() int { return len(s.locks) }

// SetDesired writes the operator's intent and syncs it, so that it survives a crash of the machine.
func (s *Store) SetDesired(profile, want string) error {
	defer s.lock(profile)()
	return s.setDesired(profile, want, synced)
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
