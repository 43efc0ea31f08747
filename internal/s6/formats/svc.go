package formats

import (
	"strconv"
	"time"
)

// Letters are the command letters of s6-svc, in the order of its manual.
const Letters = "abqhkti12pcyrlPCKoduDUxOQ"

// svcSignals maps command letters of s6-svc to signals.
var svcSignals = map[byte]struct {
	number int
	group  bool // send it to the whole process group
}{
	'h': {number: 1}, 'i': {number: 2}, 'q': {number: 3}, 'b': {number: 6}, 'k': {number: 9}, '1': {number: 10}, '2': {number: 12},
	'a': {number: 14}, 't': {number: 15}, 'c': {number: 18}, 'p': {number: 19}, 'y': {number: 28}, 'P': {19, true}, 'C': {18, true}, 'K': {9, true},
}

// SvcSignal returns the signal that a command letter sends. It is 0 if the letter does not stand for a fixed signal, such as d,
// r and l.
func SvcSignal(letter byte) (number int, group bool) {
	return svcSignals[letter].number, svcSignals[letter].group
}

// ParseMilliseconds parses a time limit in milliseconds, as the tools of s6 use it.
func ParseMilliseconds(text string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(ms) * time.Millisecond, err == nil
}
