package formats

import "time"

// TallyFile is the file in a service directory in which s6 records deaths, the ends of runs (contract of s6, section 5).
const TallyFile = "supervise/death_tally"

const (
	defaultTally = 100
	// MaxTally is the maximum number of deaths in a TallyFile, even if max-death-tally allows more.
	MaxTally = 4096
	// deathSize is the size of one death: a binary TAI64N label, the exit code, and the signal.
	deathSize = binarySize + 2
	// signalledCode plus a signal number is the exit code of a process that the signal has ended, as in shells.
	signalledCode = 128
)

// MaxTallyFile is the maximum size of a TallyFile in bytes.
const MaxTallyFile = MaxTally * deathSize

// Death is the end of one run.
type Death struct {
	At     time.Time
	Code   int // exit code, or 128 plus the signal
	Signal int // signal that ended the run; 0: none
}

// AddDeath returns tally, the content of a TallyFile, with one more death. It ignores code if a signal has ended the run. It
// keeps at most the last `most` deaths, and drops an incomplete entry.
func AddDeath(tally []byte, at time.Time, code, signal, most int) []byte {
	if signal != 0 {
		code = signalledCode + signal
	}
	tally = tally[:len(tally)/deathSize*deathSize]
	tally = append(appendBinary(tally, at), byte(code), byte(signal))
	return tally[max(0, len(tally)-most*deathSize):]
}

// Deaths parses the content of a TallyFile, oldest death first. It skips entries that are incomplete or have an invalid time.
func Deaths(tally []byte) []Death {
	var deaths []Death
	for ; len(tally) >= deathSize; tally = tally[deathSize:] {
		if at, ok := parseBinary(tally); ok {
			deaths = append(deaths, Death{At: at, Code: int(tally[binarySize]), Signal: int(tally[binarySize+1])})
		}
	}
	return deaths
}
