package formats

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Letters are the command letters of s6-svc, in the order of its manual.
const Letters = "abqhkti12pcyrlPCKoduDUxOQ"

// svcSignals maps command letters of s6-svc to signals.
var svcSignals = map[byte]struct {
	number int
	group  bool // send the signal to the whole process group
}{
	'h': {number: 1}, 'i': {number: 2}, 'q': {number: 3}, 'b': {number: 6}, 'k': {number: 9}, '1': {number: 10}, '2': {number: 12},
	'a': {number: 14}, 't': {number: 15}, 'c': {number: 18}, 'p': {number: 19}, 'y': {number: 28}, 'P': {19, true}, 'C': {18, true}, 'K': {9, true},
}

// SvcSignal returns the signal that a command letter sends, and whether it goes to the whole process group. number is 0 for
// letters that don't stand for a fixed signal, such as d, r and l.
func SvcSignal(letter byte) (number int, group bool) {
	return svcSignals[letter].number, svcSignals[letter].group
}

// ParseMilliseconds parses a time limit in milliseconds, the unit of the s6 tools.
func ParseMilliseconds(text string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(ms) * time.Millisecond, err == nil
}

// synonyms holds the additional signal names that ParseSignal accepts.
var synonyms = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

const lastSignal = 64

// ParseSignal parses a signal: a number, or a name with or without "SIG", in any case.
func ParseSignal(text string) (number int, ok bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, n > 0 && n <= lastSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	number = cmp.Or(int(unix.SignalNum("SIG"+name)), synonyms[name])
	return number, number != 0
}
