// Package loglevel determines the level of a log line. `hinit logs --level`, `hinit top`, the log forwarder and the web page use
// it. The functions do no I/O, and the package owns no goroutine.
package loglevel

import (
	"bytes"
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Level is the severity of a log line; 0 means unknown.
type Level int

// The levels, in the order of their severity.
const (
	Trace Level = iota + 1
	Debug
	Info
	Warning
	Error
	Critical
)

// levelNames lists all level names that log lines may contain. The first six are the names that [Names] returns, in the order of the
// levels.
var levelNames = []struct {
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

// Names returns the name of each level, in the order of severity from Trace to Critical.
func Names() (words []string) {
	for _, l := range levelNames[:Critical] {
		words = append(words, l.name)
	}
	return words
}

// String returns the name of the level, or "" if it is unknown.
func (l Level) String() string {
	if l < Trace || l > Critical {
		return ""
	}
	return levelNames[l-1].name
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Parse returns the level whose name is word, ignoring case, or 0 if there is no such level.
func Parse(word []byte) Level {
	for _, l := range levelNames {
		if len(word) == len(l.name) && strings.EqualFold(string(word), l.name) {
			return l.level
		}
	}
	return 0
}

// Each regular expression is compiled at its first use, so that a program that examines no line need not compile them.
var (
	// levelByKey matches a level that is the value of a key: "level":"warn" in JSON, level=warn in logfmt. Numbers are the levels
	// of pino and bunyan, from 10 (trace) to 60 (fatal).
	levelByKey     = lazyRegexp(`(?i)(?:^|[\s{,])"?(?:level|lvl|severity|levelname|log\.level|loglevel)"?\s*[=:]\s*"?([a-z]+|[1-6]0)\b`)
	klogLevel      = lazyRegexp(`^([IWEF])\d{4} \d\d:\d\d:\d\d`)
	syslogPriority = lazyRegexp(`^<(\d{1,3})>`)
	// levelWord matches a word near the beginning of a line that may be the name of a level: in brackets, before a colon, or
	// between spaces.
	levelWord = lazyRegexp(`(?:^|[\s\[(|])([A-Z]{3,11}|[a-z]{3,11})(?:[\])|:]|\s+[|:\-]|\s|$)`)
	colours   = lazyRegexp(`\x1b\[[0-9;]*m`)
)

// lazyRegexp returns a regular expression that is compiled at its first use.
func lazyRegexp(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// levelSearchBytes is how many bytes at the beginning of a line are searched for a level word without a key, such as ERROR.
const levelSearchBytes = 96

// OfLine returns the level that a log line states, or 0 if it states none.
func OfLine(text []byte) Level {
	if bytes.IndexByte(text, 0x1b) >= 0 {
		text = colours().ReplaceAll(text, nil)
	}
	if m := levelByKey().FindSubmatch(text); m != nil {
		if n, err := strconv.Atoi(string(m[1])); err == nil {
			return Level(n / 10)
		}
		if l := Parse(m[1]); l != 0 {
			return l
		}
	}
	if m := klogLevel().FindSubmatch(text); m != nil {
		return map[byte]Level{'I': Info, 'W': Warning, 'E': Error, 'F': Critical}[m[1][0]]
	}
	if m := syslogPriority().FindSubmatch(text); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return []Level{Critical, Critical, Critical, Error, Warning, Info, Info, Debug}[n%8]
	}
	head := text[:min(len(text), levelSearchBytes)]
	for from := 0; from < len(head); {
		m := levelWord().FindSubmatchIndex(head[from:])
		if m == nil {
			return 0
		}
		word := head[from+m[2] : from+m[3]]
		marked := from+m[3] < len(head) && bytes.IndexByte([]byte("]):|"), head[from+m[3]]) >= 0
		if l := Parse(word); l != 0 && (marked || word[0] < 'a') { // a lower-case "error" in the middle of a sentence is no level
			return l
		}
		from += m[3]
	}
	return 0
}

// Tracker determines the level of each line of one log. A line that states no level, such as a line of a traceback, has the
// level of the previous line. Before the first stated level, the level is Info.
type Tracker struct{ lastLevel Level }

// OfNextLine returns the level of text, which is the next line of the log.
func (t *Tracker) OfNextLine(text []byte) Level {
	if l := OfLine(text); l != 0 {
		t.lastLevel = l
	}
	t.lastLevel = cmp.Or(t.lastLevel, Info)
	return t.lastLevel
}
