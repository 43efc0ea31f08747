package formats

import (
	"strconv"
	"time"
)

// Letters are the command letters of s6-svc, in the order of its manual.
const Letters = "abqhkti12pcyrlPCKoduDUxOQ"

var signalLetters = map[int]byte{
	1: 'h', 2: 'i', 3: 'q', 6: 'b', 9: 'k', 10: '1', 12: '2', 14: 'a', 15: 't', 18: 'c', 19: 'p', 28: 'y',
}

// SvcSignal returns the signal that a letter stands for. It is 0 for letters without a fixed signal (d, r and l, too).
func SvcSignal(letter byte) (number int, group bool) {
	switch letter {
	case 'P':
		return 19, true
	case 'C':
		return 18, true
	case 'K':
		return 9, true
	}
	for n, l := range signalLetters {
		if l == letter {
			return n, false
		}
	}
	return 0, false
}

// SvcLetter returns the letter that stands for a signal to the main process. It returns false for a signal without one.
func SvcLetter(number int) (letter byte, ok bool) {
	letter, ok = signalLetters[number]
	return letter, ok
}

// ParseMilliseconds reads a time limit of s6's tools.
func ParseMilliseconds(text string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(ms) * time.Millisecond, err == nil
}
