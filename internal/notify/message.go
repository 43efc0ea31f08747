package notify

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxMessage is the maximum size of an accepted datagram, in bytes. systemd has the same limit.
const MaxMessage = 4096

const (
	// maxStatus is the maximum size of a STATUS text, in bytes.
	maxStatus = 256
	// maxTime is the longest duration that a service may send.
	maxTime = 24 * time.Hour
)

// Message is the content of one datagram. The zero value is a datagram without any known field.
type Message struct {
	Ready, Stopping, Reloading bool

	Status    string // STATUS: the service's current work, one line without control characters
	HasStatus bool   // the message has a STATUS, which may be empty

	Alive    bool          // the service has sent WATCHDOG=1: it is alive
	Failed   bool          // the service has sent WATCHDOG=trigger: it has failed
	Every    time.Duration // WATCHDOG_USEC: the watchdog interval from now on; 0 for no watchdog
	HasEvery bool
	Extend   time.Duration // EXTEND_TIMEOUT_USEC: how much more time the service needs; 0 if the message has none

	Lease string // X_HINIT_LEASE: the lease program's report about the lease, one line without control characters
}

// Parse parses a datagram, which consists of lines NAME=VALUE. It ignores unknown and invalid lines.
func Parse(data []byte) (m Message) {
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		name, value, _ := strings.Cut(string(line), "=")
		switch name {
		case "READY":
			m.Ready = m.Ready || value == "1"
		case "STOPPING":
			m.Stopping = m.Stopping || value == "1"
		case "RELOADING":
			m.Reloading = m.Reloading || value == "1"
		case "STATUS":
			m.Status, m.HasStatus = displayLine(value), true
		case "X_HINIT_LEASE":
			m.Lease = displayLine(value)
		case "WATCHDOG":
			m.Alive, m.Failed = m.Alive || value == "1", m.Failed || value == "trigger"
		case "WATCHDOG_USEC":
			if d, ok := microseconds(value); ok {
				m.Every, m.HasEvery = d, true
			}
		case "EXTEND_TIMEOUT_USEC":
			if d, ok := microseconds(value); ok {
				m.Extend = d
			}
		}
	}
	return m
}

// microseconds parses a number of microseconds, and limits the duration to [maxTime]. The largest 64-bit number means no limit in
// systemd; the result is 0.
func microseconds(text string) (time.Duration, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err != nil:
		return 0, false
	case n == math.MaxUint64:
		return 0, true
	}
	return time.Duration(min(n, uint64(maxTime/time.Microsecond))) * time.Microsecond, true
}

// displayLine returns text as one line that is safe to display: no control characters, no invalid UTF-8, at most [maxStatus]
// bytes.
func displayLine(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) {
			r = ' '
		}
		if b.Len()+utf8.RuneLen(r) > maxStatus {
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
