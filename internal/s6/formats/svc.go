package formats

import (
	"iter"
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
	for letter, value := range o.All() {
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
	c.Dirs = o.Words
	return c, !o.Wrong && len(c.Dirs) > 0
}

// ParseMilliseconds reads a time limit of s6's tools.
func ParseMilliseconds(text string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(text, 10, 32)
	return time.Duration(ms) * time.Millisecond, err == nil
}

// Options reads single-letter options as s6's tools do: letters may be joined, a value may be joined to its letter or be the next
// word, and "--" or the first other word ends them.
type Options struct {
	Words     []string // what is still to be read; after All, the words after the options
	Plain     string   // letters without a value
	WithValue string   // letters with one
	Wrong     bool     // All has ended at an unknown letter or a missing value
}

// All ranges over the options and their values.
func (o *Options) All() iter.Seq2[byte, string] {
	return func(yield func(letter byte, value string) bool) {
		for len(o.Words) > 0 && len(o.Words[0]) > 1 && o.Words[0][0] == '-' {
			word := o.Words[0][1:]
			o.Words = o.Words[1:]
			if word == "-" {
				return
			}
			for word != "" {
				letter, value := word[0], ""
				word = word[1:]
				switch {
				case strings.IndexByte(o.Plain, letter) >= 0:
				case strings.IndexByte(o.WithValue, letter) < 0, word == "" && len(o.Words) == 0:
					o.Wrong = true
					return
				case word != "":
					value, word = word, ""
				default:
					value, o.Words = o.Words[0], o.Words[1:]
				}
				if !yield(letter, value) {
					return
				}
			}
		}
	}
}
