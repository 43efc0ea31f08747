package s6

import (
	"encoding/binary"
	"time"
)

// TallyFile is where s6 counts the deaths of a service, in its directory (contract of s6, section 5).
const TallyFile = "supervise/death_tally"

const (
	defaultTally = 100
	// MaxTally is how many deaths are kept at most, whatever max-death-tally says.
	MaxTally = 4096
	// deathSize is the length of one death: a binary TAI64N label, the exit code, the signal.
	deathSize = 14
	// signalledCode is added to a signal to make the exit code of a death by that signal, as shells do.
	signalledCode = 128
)

// MaxTallyFile is how long a tally is at most, in bytes.
const MaxTallyFile = MaxTally * deathSize

// Death is the end of one run.
type Death struct {
	At     time.Time
	Code   int // exit code, or 128 and the signal
	Signal int // that ended it, 0 for none
}

// DeathOf is a death with the exit code that stands for a signal, if one ended the run.
func DeathOf(at time.Time, code, signal int) Death {
	if signal != 0 {
		code = signalledCode + signal
	}
	return Death{At: at, Code: code, Signal: signal}
}

// Bury adds a death to a tally and forgets the oldest of more than most. What is no whole death is dropped.
func Bury(tally []byte, d Death, most int) []byte {
	tally = tally[:len(tally)/deathSize*deathSize]
	unix := d.At.Unix()
	tally = binary.BigEndian.AppendUint64(tally, uint64(unix+leapsAt(unix))+taiOffset)
	tally = binary.BigEndian.AppendUint32(tally, uint32(d.At.Nanosecond()))
	tally = append(tally, byte(d.Code), byte(d.Signal))
	return tally[max(0, len(tally)-most*deathSize):]
}

// Deaths reads a tally, oldest first. What is no whole death at its end is left out, and so is one of no time that exists.
func Deaths(tally []byte) []Death {
	var deaths []Death
	for ; len(tally) >= deathSize; tally = tally[deathSize:] {
		seconds, nanos := binary.BigEndian.Uint64(tally), binary.BigEndian.Uint32(tally[8:])
		at, ok := timeOfTAI(seconds, uint64(nanos))
		if ok {
			deaths = append(deaths, Death{At: at, Code: int(tally[12]), Signal: int(tally[13])})
		}
	}
	return deaths
}
