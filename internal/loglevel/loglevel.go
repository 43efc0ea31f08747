// Package loglevel finds the level of a log line. `hinit logs --level`, the forwarder and the page use it. The functions are pure,
// and the package owns no goroutine.
package loglevel

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Level is the level of a line; 0 is unknown.
type Level int

// The levels, from the least serious one.
const (
	Trace Level = iota + 1
	Debug
	Info
	Warning
	Error
	Critical
)

// names has all names of the levels; the result of [Names] comes first.
var names = []struct {
	name  string
	level Level
}{
	{"trace", Trace},
	{"debug", Debug},
	{"info", Info},
	{"warning", Warning},
	{"error", Error},
	{"critical", Critical},
	{"verbose", Trace},
	{"dbg", Debug},
	{"notice", Info},
	{"information", Info},
	{"warn", Warning},
	{"err", Error},
	{"severe", Error},
	{"fatal", Critical},
	{"crit", Critical},
	{"alert", Critical},
	{"emerg", Critical},
	{"emergency", Critical},
	{"panic", Critical},
}

// Names returns the name of each level, from the least serious one.
func Names() (words []string) {
	for _, l := range names[:Critical] {
		words = append(words, l.name)
	}
	return words
}

// String returns the name of the level, "" for the unknown one.
func (l Level) String() string {
	if l < Trace || l > Critical {
		return ""
	}
	return names[l-1].name
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Named returns the level of this name, in any case, or 0.
func Named(word []byte) Level {
	for _, l := range names {
		if len(word) == len(l.name) && strings.EqualFold(string(word), l.name) {
			return l.level
		}
	}
	return 0
}

// The expressions are compiled when the first line is read, so a program that reads no line does not pay for them.
var (
	// keyed matches a level as a value: "level":"warn" in JSON, level=warn in logfmt. Numbers have the meaning of pino and bunyan.
	keyed = expression(`(?i)(?:^|[\s{,])"?(?:level|lvl|severity|levelname|log\.level|loglevel)"?\s*[=:]\s*"?([a-z]+|[1-6]0)\b`)
	// klog matches a line of Kubernetes' libraries: W1122 12:00:00.000000.
	klog = expression(`^([IWEF])\d{4} \d\d:\d\d:\d\d`)
	// syslog matches a priority before the line: <3>, or <11> with a facility.
	syslog = expression(`^<(\d{1,3})>`)
	// shouted matches a word that may be a level near the beginning of a line: in brackets, before a colon, or between spaces.
	shouted = expression(`(?:^|[\s\[(|])([A-Z]{3,11}|[a-z]{3,11})(?:[\])|:]|\s+[|:\-]|\s|$)`)
	// colours matches the colour sequences of a terminal.
	colours = expression(`\x1b\[[0-9;]*m`)
)

// expression returns a regular expression that is compiled at its first use.
func expression(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// levelHead is how many bytes of a line are searched for a level without a key.
const levelHead = 96

// Of returns the level that a line states, or 0.
func Of(text []byte) Level {
	if bytes.IndexByte(text, 0x1b) >= 0 {
		text = colours().ReplaceAll(text, nil)
	}
	if m := keyed().FindSubmatch(text); m != nil {
		if n, err := strconv.Atoi(string(m[1])); err == nil {
			return Level(n / 10)
		}
		if l := Named(m[1]); l != 0 {
			return l
		}
	}
	if m := klog().FindSubmatch(text); m != nil {
		return map[byte]Level{'I': Info, 'W': Warning, 'E': Error, 'F': Critical}[m[1][0]]
	}
	if m := syslog().FindSubmatch(text); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return []Level{Critical, Critical, Critical, Error, Warning, Info, Info, Debug}[n%8]
	}
	head := text[:min(len(text), levelHead)]
	for from := 0; from < len(head); {
		m := shouted().FindSubmatchIndex(head[from:])
		if m == nil {
			return 0
		}
		word := head[from+m[2] : from+m[3]]
		marked := from+m[3] < len(head) && bytes.IndexByte([]byte("]):|"), head[from+m[3]]) >= 0
		if l := Named(word); l != 0 && (marked || word[0] < 'a') { // "error" in the middle of a sentence is no level
			return l
		}
		from += m[3]
	}
	return 0
}

// Tracker assigns a level to each line of one log. A line without a level, such as a line of a traceback, has the level of the line
// before it. The first line without one has Info.
type Tracker struct{ last Level }

// Of returns the level of the next line.
func (t *Tracker) Of(text []byte) Level {
	if l := Of(text); l != 0 {
		t.last = l
	}
	if t.last == 0 {
		t.last = Info
	}
	return t.last
}
