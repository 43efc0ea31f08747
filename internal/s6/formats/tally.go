package formats

import "time"

// TallyFile is the file of a service directory in which s6 records deaths (contract of s6, section 5).
const TallyFile = "supervise/death_tally"

const (
	defaultTally = 100
	// MaxTally limits the recorded deaths, whatever max-death-tally says.
	MaxTally = 4096
	// deathSize is the length of one death: a binary TAI64N label, the exit code, the signal.
	deathSize = binarySize + 2
	// signalledCode is added to a signal to get an exit code, as shells do.
	signalledCode = 128
)

// MaxTallyFile is the largest size of a tally in bytes.
const MaxTallyFile = MaxTally * deathSize

// Death is the end of one run.
type Death struct {
	At     time.Time
	Code   int // exit code, or 128 plus the signal
	Signal int // signal that ended it, 0 for none
}

// DeathOf returns a Death. A signal replaces the code as in a shell.
func DeathOf(at time.Time, code, signal int) Death {
	if signal != 0 {
		code = signalledCode + signal
	}
	return Death{At: at, Code: code, Signal: signal}
}

// AddDeath adds a death to a tally and keeps the last most deaths. It drops incomplete ones.
func AddDeath(tally []byte, d Death, most int) []byte {
	tally = tally[:len(tally)/deathSize*deathSize]
	tally = append(appendBinary(tally, d.At), byte(d.Code), byte(d.Signal))
	return tally[max(0, len(tally)-most*deathSize):]
}

// Deaths returns the deaths in a tally, oldest first. It leaves out deaths that are incomplete or have no valid time.
func Deaths(tally []byte) []Death {
	var deaths []Death
	for ; len(tally) >= deathSize; tally = tally[deathSize:] {
		if at, ok := parseBinary(tally); ok {
			deaths = append(deaths, Death{At: at, Code: int(tally[binarySize]), Signal: int(tally[binarySize+1])})
		}
	}
	return deaths
}
