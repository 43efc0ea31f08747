package formats

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SvcLetters are the commands of s6-svc, in the order of its manual.
const SvcLetters = "abqhkti12pcyrlPCKoduDUxOQ"

// svcSignals maps commands of s6-svc to signals.
var svcSignals = map[byte]struct {
	number int
	group  bool // the signal goes to the whole process group
}{
	'h': {number: 1}, 'i': {number: 2}, 'q': {number: 3}, 'b': {number: 6}, 'k': {number: 9}, '1': {number: 10}, '2': {number: 12},
	'a': {number: 14}, 't': {number: 15}, 'c': {number: 18}, 'p': {number: 19}, 'y': {number: 28}, 'P': {19, true}, 'C': {18, true}, 'K': {9, true},
}

// SvcSignal returns the signal that a command sends, and whether it goes to the whole process group. For commands without a fixed
// signal, such as d, r and l, number is 0.
func SvcSignal(letter byte) (number int, group bool) {
	return svcSignals[letter].number, svcSignals[letter].group
}

// ParseMilliseconds parses a time in milliseconds, the unit of s6.
func ParseMilliseconds(text string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(ms) * time.Millisecond, err == nil
}

var signalSynonyms = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

const maxSignal = 64

// ParseSignal parses a signal: a number, or a name in upper or lower case, with or without "SIG".
func ParseSignal(text string) (number int, ok bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, n > 0 && n <= maxSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	number = cmp.Or(int(unix.SignalNum("SIG"+name)), signalSynonyms[name])
	return number, number != 0
}
