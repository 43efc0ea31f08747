package profiles

import "time"

// Internals that the tests need: names and limits of its files, the clock, and the state in memory.
const (
	AskedFile    = askedFile
	BootLogMax   = bootLogMax
	DecidedAhead = decidedAhead
	MaxState     = maxState
)

var (
	Alive       = alive
	IsIntent    = isIntent
	KernelBoot  = kernelBoot
	ProcessStat = processStat
)

func (s *Store) SetClock(now func() time.Time) { s.now = now }

func (s *Store) Locks() int { return len(s.locks) }
