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

// MaxMessage is the maximum size in bytes of a datagram, as in systemd.
const MaxMessage = 4096

const (
	// maxStatus is the maximum size in bytes of a STATUS text.
	maxStatus = 256
	// maxDuration is the longest duration that a service can send.
	maxDuration = 24 * time.Hour
)

// Message is the content of one datagram. A field is zero if the datagram lacks it.
type Message struct {
	Ready, Stopping, Reloading bool

	Status    string // STATUS: what the service is doing, in one line without control characters
	HasStatus bool   // whether there is a STATUS, perhaps an empty one

	Alive               bool          // WATCHDOG=1: the service is alive
	Failed              bool          // WATCHDOG=trigger: the service has failed
	WatchdogInterval    time.Duration // WATCHDOG_USEC: the watchdog interval from now on; 0 for no watchdog
	HasWatchdogInterval bool
	ExtendTimeout       time.Duration // EXTEND_TIMEOUT_USEC: how much more time the service needs

	LeaseMessage string // X_HINIT_LEASE: message of the lease program about the lease, in one line without control characters
}

// Parse parses a datagram, which has a NAME=VALUE in each line. Unknown and invalid lines are ignored.
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
			m.LeaseMessage = displayLine(value)
		case "WATCHDOG":
			m.Alive, m.Failed = m.Alive || value == "1", m.Failed || value == "trigger"
		case "WATCHDOG_USEC":
			if d, ok := microseconds(value); ok {
				m.WatchdogInterval, m.HasWatchdogInterval = d, true
			}
		case "EXTEND_TIMEOUT_USEC":
			if d, ok := microseconds(value); ok {
				m.ExtendTimeout = d
			}
		}
	}
	return m
}

// microseconds parses a number of microseconds, up to maxDuration. The largest 64-bit number means no limit in systemd, and gives
// 0.
func microseconds(text string) (time.Duration, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err != nil:
		return 0, false
	case n == math.MaxUint64:
		return 0, true
	}
	return time.Duration(min(n, uint64(maxDuration/time.Microsecond))) * time.Microsecond, true
}

// displayLine returns text as one line that is safe to display: without control characters and invalid UTF-8, at most
// maxStatus bytes.
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
