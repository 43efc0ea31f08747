package formats

import "time"

// TallyFile is the file in a service directory in which s6 records deaths (contract of s6, section 5). A death is the end of
// a run.
const TallyFile = "supervise/death_tally"

const (
	defaultTally = 100
	// MaxTally is the maximum number of deaths that are recorded, even if max-death-tally allows more.
	MaxTally = 4096
	// deathSize is the size of one recorded death: a binary TAI64N label, the exit code, and the signal.
	deathSize = binarySize + 2
	// signalledCode plus the signal's number is the exit code of a process that a signal has ended, as in shells.
	signalledCode = 128
)

// MaxTallyFile is the maximum size of TallyFile, in bytes.
const MaxTallyFile = MaxTally * deathSize

// Death is the end of one run.
type Death struct {
	At     time.Time
	Code   int // exit code, or 128 plus the signal
	Signal int // signal that ended the run, 0 for none
}

// AddDeath appends the death of a run to the content of TallyFile and returns the new content. If a signal ended the run, it
// ignores the exit code. It keeps only the latest deaths; the argument most is their maximum number. It drops an incomplete entry.
func AddDeath(tally []byte, at time.Time, code, signal, most int) []byte {
	if signal != 0 {
		code = signalledCode + signal
	}
	tally = tally[:len(tally)/deathSize*deathSize]
	tally = append(appendBinary(tally, at), byte(code), byte(signal))
	return tally[max(0, len(tally)-most*deathSize):]
}

// Deaths parses the content of TallyFile and returns the deaths, oldest first. Entries that are incomplete or have an invalid
// time are left out.
func Deaths(tally []byte) []Death {
	var deaths []Death
	for ; len(tally) >= deathSize; tally = tally[deathSize:] {
		if at, ok := parseBinary(tally); ok {
			deaths = append(deaths, Death{At: at, Code: int(tally[binarySize]), Signal: int(tally[binarySize+1])})
		}
	}
	return deaths
}
