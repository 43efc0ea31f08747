package formats

import "time"

// TallyFile is the file in a service directory in which s6 records deaths, the ends of runs (contract of s6, section 5).
const TallyFile = "supervise/death_tally"

const (
	defaultMaxDeaths = 100
	// MaxDeaths is the maximum number of deaths in a TallyFile, even if max-death-tally allows more.
	MaxDeaths = 4096
	// deathSize is the size of one death: a binary TAI64N label, the exit code, and the signal.
	deathSize = binaryLabelSize + 2
	// signalExitBase plus a signal number is the exit code of a process that the signal has ended, as in shells.
	signalExitBase = 128
)

// MaxTallyFile is the maximum size of a TallyFile in bytes.
const MaxTallyFile = MaxDeaths * deathSize

// Death is the end of one run.
type Death struct {
	At     time.Time
	Code   int // exit code, or 128 plus the signal
	Signal int // signal that ended the run; 0: none
}

// AddDeath returns tally, the content of a TallyFile, with one more death. It ignores code if a signal has ended the run. It
// keeps at most the last `limit` deaths, and drops an incomplete entry.
func AddDeath(tally []byte, at time.Time, code, signal, limit int) []byte {
	if signal != 0 {
		code = signalExitBase + signal
	}
	tally = tally[:len(tally)/deathSize*deathSize]
	tally = append(appendBinaryLabel(tally, at), byte(code), byte(signal))
	return tally[max(0, len(tally)-limit*deathSize):]
}

// ParseDeaths parses the content of a TallyFile, oldest death first. It skips entries that are incomplete or have an invalid
// time.
func ParseDeaths(tally []byte) []Death {
	var deaths []Death
	for ; len(tally) >= deathSize; tally = tally[deathSize:] {
		if at, ok := parseBinaryLabel(tally); ok {
			deaths = append(deaths, Death{At: at, Code: int(tally[binaryLabelSize]), Signal: int(tally[binaryLabelSize+1])})
		}
	}
	return deaths
}
