package cli

import (
	"bytes"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"hinit/internal/config"
)

// level is how serious a line is, as the value of a flag; 0 is any.
type level int

// The levels, from the least serious one.
const (
	levelTrace level = iota + 1
	levelDebug
	levelInfo
	levelWarning
	levelError
	levelCritical
)

// levelNames are the levels by name, the plain ones first.
var levelNames = []struct {
	name string
	level
}{
	{"trace", levelTrace},
	{"debug", levelDebug},
	{"info", levelInfo},
	{"warning", levelWarning},
	{"error", levelError},
	{"critical", levelCritical},
	{"verbose", levelTrace},
	{"dbg", levelDebug},
	{"notice", levelInfo},
	{"information", levelInfo},
	{"warn", levelWarning},
	{"err", levelError},
	{"severe", levelError},
	{"fatal", levelCritical},
	{"crit", levelCritical},
	{"alert", levelCritical},
	{"emerg", levelCritical},
	{"emergency", levelCritical},
	{"panic", levelCritical},
}

// plainLevels is how many of them are offered.
const plainLevels = 6

func (*level) choices() (words []string) {
	for _, l := range levelNames[:plainLevels] {
		words = append(words, l.name)
	}
	return words
}

// String implements flag.Value.
func (l *level) String() string { return "" }

// Set implements flag.Value.
func (l *level) Set(text string) error {
	if *l = levelNamed([]byte(text)); *l != 0 {
		return nil
	}
	near := ""
	if word := config.Nearest(text, l.choices()); word != "" {
		near = "; did you mean " + strconv.Quote(word) + "?"
	}
	return errors.New("expected " + strings.Join(l.choices(), ", ") + near)
}

func levelNamed(word []byte) level {
	for _, l := range levelNames {
		if len(word) == len(l.name) && strings.EqualFold(string(word), l.name) {
			return l.level
		}
	}
	return 0
}

// What finds the level of a line. It is compiled when a line is looked at, so that no other verb pays for it.
var (
	// keyed is a level as a value: "level":"warn" of JSON, level=warn of logfmt. Numbers are those of pino and bunyan.
	keyed = expression(`(?i)(?:^|[\s{,])"?(?:level|lvl|severity|levelname|log\.level|loglevel)"?\s*[=:]\s*"?([a-z]+|[1-6]0)\b`)
	// klog is a line of Kubernetes' libraries: W1122 12:00:00.000000.
	klog = expression(`^([IWEF])\d{4} \d\d:\d\d:\d\d`)
	// syslog is a priority before the line: <3>, or <11> with a facility.
	syslog = expression(`^<(\d{1,3})>`)
	// shouted is a word in capitals, in brackets or before a colon, near the beginning, behind a time or a name at most.
	shouted = expression(`(?:^|[\s\[(|])([A-Z]{3,11}|[a-z]{3,11})(?:[\])|:]|\s+[|:\-]|\s|$)`)
	// colours are what a terminal would obey.
	colours = expression(`\x1b\[[0-9;]*m`)
)

// expression is a regular expression that is compiled when it is used first.
func expression(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// levelHead is how much of a line can say its level outside of a key.
const levelHead = 96

// levelOf finds the level in a line; 0 when it says none.
func levelOf(text []byte) level {
	if bytes.IndexByte(text, 0x1b) >= 0 {
		text = colours().ReplaceAll(text, nil)
	}
	if m := keyed().FindSubmatch(text); m != nil {
		if n, err := strconv.Atoi(string(m[1])); err == nil {
			return level(n / 10)
		}
		if l := levelNamed(m[1]); l != 0 {
			return l
		}
	}
	if m := klog().FindSubmatch(text); m != nil {
		return map[byte]level{'I': levelInfo, 'W': levelWarning, 'E': levelError, 'F': levelCritical}[m[1][0]]
	}
	if m := syslog().FindSubmatch(text); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		return []level{levelCritical, levelCritical, levelCritical, levelError, levelWarning, levelInfo, levelInfo, levelDebug}[n%8]
	}
	head := text[:min(len(text), levelHead)]
	for from := 0; from < len(head); {
		m := shouted().FindSubmatchIndex(head[from:])
		if m == nil {
			return 0
		}
		word := head[from+m[2] : from+m[3]]
		marked := from+m[3] < len(head) && bytes.IndexByte([]byte("]):|"), head[from+m[3]]) >= 0
		if l := levelNamed(word); l != 0 && (marked || word[0] < 'a') { // "error" in the middle of a sentence is none
			return l
		}
		from += m[3]
	}
	return 0
}

// atLeast matches the lines of a log that are as serious as least. A line that says no level, such as one of a traceback, belongs to the
// one before it; ahead of all it counts as info.
func atLeast(least level) func(text []byte) bool {
	last := levelInfo
	return func(text []byte) bool {
		if l := levelOf(text); l != 0 {
			last = l
		}
		return last >= least
	}
}

// allOf matches what all do. Each is asked about each line.
func allOf(match ...func([]byte) bool) func([]byte) bool {
	return func(text []byte) bool {
		yes := true
		for _, m := range match {
			yes = m(text) && yes
		}
		return yes
	}
}
