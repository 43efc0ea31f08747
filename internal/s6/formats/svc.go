package formats

import (
	"strconv"
	"time"
)

// Letters are the command letters of s6-svc, in the order of its manual.
const Letters = "abqhkti12pcyrlPCKoduDUxOQ"

// svcSignals maps letters to signals.
var svcSignals = map[byte]struct {
	number int
	group  bool // send it to the whole process group
}{
	'h': {number: 1}, 'i': {number: 2}, 'q': {number: 3}, 'b': {number: 6}, 'k': {number: 9}, '1': {number: 10}, '2': {number: 12},
	'a': {number: 14}, 't': {number: 15}, 'c': {number: 18}, 'p': {number: 19}, 'y': {number: 28}, 'P': {19, true}, 'C': {18, true}, 'K': {9, true},
}

// SvcSignal returns the signal for a command letter. It is 0 for a letter that sends no fixed signal, such as d, r and l.
func SvcSignal(letter byte) (number int, group bool) {
	return svcSignals[letter].number, svcSignals[letter].group
}

// ParseMilliseconds parses a time limit of s6's tools.
func ParseMilliseconds(text string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(ms) * time.Millisecond, err == nil
}
