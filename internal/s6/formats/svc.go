package formats

import (
	"strconv"
	"strings"
	"time"
)

// Letters are the command letters of s6-svc, in the order of its manual.
const Letters = "abqhkti12pcyrlPCKoduDUxOQ"

// Svc is a command line of s6-svc.
type Svc struct {
	Letters string        // the commands, in order
	Wait    byte          // u U d D r R, or 0: what to wait for after sending
	Timeout time.Duration // for the wait; 0 waits for ever
	Dirs    []string      // the service directories
}

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

// ParseSvc reads the words after "s6-svc". It returns false for wrong usage.
func ParseSvc(words []string) (c Svc, ok bool) {
	o := Options{Words: words, Plain: Letters, WithValue: "wTs"}
	for {
		letter, value, more, ok := o.Next()
		switch {
		case !ok:
			return Svc{}, false
		case !more:
			c.Dirs = o.Words
			return c, len(c.Dirs) > 0
		}
		switch letter {
		case 'w':
			if len(value) != 1 || !strings.Contains("uUdDrR", value) {
				return Svc{}, false
			}
			c.Wait = value[0]
		case 'T':
			if c.Timeout, ok = ParseMilliseconds(value); !ok {
				return Svc{}, false
			}
		case 's':
			n, ok := ParseSignal(value)
			if !ok || signalLetters[n] == 0 {
				return Svc{}, false
			}
			c.Letters += string(signalLetters[n])
		default:
			c.Letters += string(letter)
		}
	}
}

// ParseMilliseconds reads a time limit of s6's tools.
func ParseMilliseconds(text string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(ms) * time.Millisecond, err == nil
}

// Options reads single-letter options as s6's tools do: letters may be joined, a value may be joined to its letter or be the next
// word, and "--" or the first other word ends them.
type Options struct {
	Words     []string // what is still to be read; when Next has no more, the words after the options
	Plain     string   // letters without a value
	WithValue string   // letters with one

	joined string // the rest of the word that is being read
}

// Next returns the next option. more is false at the end; ok is false for an unknown letter or a missing value, after which Next
// must not be called.
func (o *Options) Next() (letter byte, value string, more, ok bool) {
	if o.joined == "" {
		if len(o.Words) == 0 || len(o.Words[0]) < 2 || o.Words[0][0] != '-' {
			return 0, "", false, true
		}
		word := o.Words[0]
		o.Words = o.Words[1:]
		if word == "--" {
			return 0, "", false, true
		}
		o.joined = word[1:]
	}
	letter, o.joined = o.joined[0], o.joined[1:]
	switch {
	case strings.IndexByte(o.Plain, letter) >= 0:
		return letter, "", true, true
	case strings.IndexByte(o.WithValue, letter) < 0:
		return letter, "", false, false
	case o.joined != "":
		value, o.joined = o.joined, ""
		return letter, value, true, true
	case len(o.Words) == 0:
		return letter, "", false, false
	}
	value, o.Words = o.Words[0], o.Words[1:]
	return letter, value, true, true
}
