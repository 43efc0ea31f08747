package config

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"
)

// foreignKeyNames maps key names that people know from other programs to hinit's keys.
var foreignKeyNames = map[string]string{
	"depends_on": "needs", "after": "needs", "requires": "needs", "environment": "env", "working_dir": "cwd", "working_directory": "cwd", "directory": "cwd",
	"workdir": "cwd", "cmd": "command", "exec": "command", "entrypoint": "command", "healthcheck": "checks", "liveness_probe": "checks", "readiness_probe": "checks",
	"autostart": "enabled", "disabled": "enabled", "startup": "enabled", "autorestart": "restart.policy", "stopsignal": "stop.signal", "stop_signal": "stop.signal",
	"stop_grace_period": "stop.grace", "stopwaitsecs": "stop.grace", "mem_limit": "memory.restart", "ulimits": "limits", "cron": "schedule.cron", "uid": "user",
}

var caseBoundary = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(\p{Ll})(\p{Lu})`) })

// snakeCase returns a key in lower case with underscores: maxRestarts, max-restarts and MAX_RESTARTS become max_restarts.
func snakeCase(key string) string {
	return strings.ToLower(strings.ReplaceAll(caseBoundary().ReplaceAllString(key, "${1}_$2"), "-", "_"))
}

// invisibleCharacter describes an invisible character in a key, or returns "".
func invisibleCharacter(key string) string {
	for _, r := range key {
		if r > unicode.MaxASCII && (unicode.IsSpace(r) || unicode.Is(unicode.Cf, r)) {
			return fmt.Sprintf("; it has the character %U, which looks like a blank or like nothing: type the line again with plain spaces", r)
		}
	}
	return ""
}

// durationUnits replaces the words that people write for units of a duration.
var durationUnits = strings.NewReplacer(" ", "", "minutes", "m", "minute", "m", "mins", "m", "min", "m", "seconds", "s", "second", "s", "secs", "s", "sec", "s", "hours", "h", "hour", "h", "days", "d", "day", "d")

// durationHint returns the duration that was probably meant, in valid form, or "".
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

// mappingHint returns an example of the mapping at path, if the keys of that mapping are names.
func mappingHint(path string) string {
	last := path[strings.LastIndexByte(path, '.')+1:]
	return map[string]string{
		"services": " such as {web: {command: [httpd]}}", "runs": " such as {index: {command: [indexer]}}", "profiles": " such as {coder: {restart: never}}",
		"env": " such as {NAME: value}", "headers": " such as {Name: value}",
	}[last]
}
