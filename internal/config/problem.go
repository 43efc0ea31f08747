package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Problem is one mistake in a configuration. The error of [Load] joins all problems: first the problems of the file, sorted by
// line, then the problems of the environment. Error returns a single line.
type Problem struct { //nolint:errname // other packages read its fields
	File string // path of the file; "" for the environment
	Line int    // line in the file; 0 if unknown
	Env  string // name of the variable; "" for the file
	Msg  string
}

func (p *Problem) Error() string {
	switch {
	case p.File != "" && p.Line > 0:
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Msg)
	case p.File != "":
		return p.File + ": " + p.Msg
	default:
		return p.Msg
	}
}

// problems collects the mistakes of one configuration. file is its path, for messages.
type problems struct {
	file string
	list []*Problem
}

// Limits on the problems that are kept for a file full of mistakes.
const (
	maxProblems    = 200
	maxMessageSize = 2000
)

// countIfFull counts a problem without its message if maxProblems are already recorded, and reports whether it did. Callers use
// it to skip costly messages, such as a search for a similar name.
func (p *problems) countIfFull() bool {
	full := len(p.list) >= maxProblems
	if full {
		p.list = append(p.list, nil)
	}
	return full
}

// add records a problem. If maxProblems are already recorded, it only counts the problem.
func (p *problems) add(one Problem) {
	if p.countIfFull() {
		return
	}
	if len(one.Msg) > maxMessageSize {
		one.Msg = strings.ToValidUTF8(one.Msg[:maxMessageSize], "") + "..."
	}
	p.list = append(p.list, &one)
}

func (p *problems) reportAtLine(line int, format string, args ...any) {
	p.add(Problem{File: p.file, Line: line, Msg: fmt.Sprintf(format, args...)})
}

// reportVariable records that the value of an environment variable is invalid.
func (p *problems) reportVariable(name, value, reason string) {
	p.add(Problem{Env: name, Msg: fmt.Sprintf("cannot use %s=%q: %s", name, value, reason)})
}

// reportAtOrigin records a problem with a value, with the place where the value was set.
func (p *problems) reportAtOrigin(o origin, format string, args ...any) {
	if o.env != "" {
		p.add(Problem{Env: o.env, Msg: fmt.Sprintf(format, args...) + " (" + o.String() + ")"})
		return
	}
	p.reportAtLine(o.line, format, args...)
}

// err joins all problems into one error, or returns nil if there are none.
func (p *problems) err() error {
	kept := p.list[:min(len(p.list), maxProblems)]
	slices.SortStableFunc(kept, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(b.File, a.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Env, b.Env), cmp.Compare(a.Msg, b.Msg))
	})
	errs := make([]error, len(kept))
	for i, one := range kept {
		errs[i] = one
	}
	if more := len(p.list) - len(kept); more > 0 {
		errs = append(errs, fmt.Errorf("%d more problems are not shown; mend these first", more))
	}
	return errors.Join(errs...)
}

// NoServicesError returns the error for hinit run with a file that has no services.
func NoServicesError(path string) error {
	return fmt.Errorf("cannot run the services of %q: it has none; add one below the key \"services\"", path)
}

// foreignKeyNames maps keys of other programs (systemd, Docker Compose, supervisord, Kubernetes) to keys of hinit.yaml.
var foreignKeyNames = map[string]string{
	"depends_on": "needs", "after": "needs", "requires": "needs", "environment": "env", "working_dir": "cwd", "working_directory": "cwd", "directory": "cwd",
	"workdir": "cwd", "cmd": "command", "exec": "command", "entrypoint": "command", "healthcheck": "checks", "liveness_probe": "checks", "readiness_probe": "checks",
	"autostart": "enabled", "disabled": "enabled", "startup": "enabled", "autorestart": "restart.policy", "stopsignal": "stop.signal", "stop_signal": "stop.signal",
	"stop_grace_period": "stop.grace", "stopwaitsecs": "stop.grace", "mem_limit": "memory.restart", "ulimits": "limits", "cron": "schedule.cron", "uid": "user",
}

var caseBoundary = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(\p{Ll})(\p{Lu})`) })

// invisibleCharacter describes an invisible character in a key for a message, or returns "".
func invisibleCharacter(key string) string {
	for _, r := range key {
		if r > unicode.MaxASCII && (unicode.IsSpace(r) || unicode.Is(unicode.Cf, r)) {
			return fmt.Sprintf("; it has the character %U, which looks like a blank or like nothing: type the line again with plain spaces", r)
		}
	}
	return ""
}

// durationUnits replaces words for units of time by the units that Go parses.
var durationUnits = strings.NewReplacer(" ", "", "minutes", "m", "minute", "m", "mins", "m", "min", "m", "seconds", "s", "second", "s", "secs", "s", "sec", "s", "hours", "h", "hour", "h", "days", "d", "day", "d")

// durationHint returns the correct spelling of the duration that text probably means, or "".
func durationHint(text string) string {
	text = durationUnits.Replace(strings.ToLower(text))
	days := 0
	if _, err := fmt.Sscanf(text+"\n", "%dd\n", &days); err == nil && days > 0 && days < 10000 {
		return fmt.Sprintf("; write %q", formatDuration(time.Duration(days)*24*time.Hour))
	}
	if d, err := time.ParseDuration(text); err == nil {
		return fmt.Sprintf("; write %q", formatDuration(d))
	}
	return ""
}

// mappingHint returns an example of the mapping at path if its keys are names, and "" otherwise.
func mappingHint(path string) string {
	last := path[strings.LastIndexByte(path, '.')+1:]
	return map[string]string{
		"services": " such as {web: {command: [httpd]}}", "runs": " such as {index: {command: [indexer]}}", "profiles": " such as {coder: {restart: never}}",
		"env": " such as {NAME: value}", "headers": " such as {Name: value}",
	}[last]
}
