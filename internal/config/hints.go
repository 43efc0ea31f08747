package config

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"
)

// yamlErrorHint returns a hint to append to an error message. msg is the message from the YAML library about a line of data. The
// hint is the usual cause of msg, or "" if the cause is unknown.
func yamlErrorHint(data []byte, line int, msg string) string {
	switch {
	case strings.Contains(msg, "mapping values are not allowed"):
		return "; " + missingColon(data, line)
	case strings.Contains(msg, "did not find expected key"):
		return "; is the line indented as those of the same level?"
	case strings.Contains(msg, "cannot start any token"):
		return "; indent with spaces, not with tabs, and quote what begins with @ or `"
	case strings.Contains(msg, "could not find expected ':'"):
		return "; a key is followed by a colon and a space"
	case strings.Contains(msg, "unknown anchor"):
		return "; quote a text that begins with *"
	case strings.Contains(msg, "unexpected end of stream"), strings.Contains(msg, "did not find expected ','"):
		return "; is a quote, a bracket or a brace left open?"
	case strings.Contains(msg, "<document start>"):
		return "; the mapping has ended before this line; remove it, or write it as a key below the others"
	case strings.Contains(msg, "incompatible YAML document"):
		return "; remove the line with %YAML"
	}
	return ""
}

var glued = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*(?:- )?[A-Za-z_][A-Za-z0-9_.-]*:[^\s:]`) })

// missingColon returns the usual cause of the message "mapping values are not allowed" about a line. Often the line before it
// lacks a colon, or the space after a colon.
func missingColon(data []byte, line int) string {
	lines := bytes.Split(data, []byte("\n"))
	n, before := min(line-1, len(lines)), ""
	for ; n > 0 && (before == "" || before[0] == '#'); n-- {
		before = strings.TrimSpace(string(lines[n-1]))
	}
	switch {
	case glued().MatchString(before):
		return fmt.Sprintf("line %d needs a space after its colon", n+1)
	case before != "" && before[0] != '#' && !strings.Contains(before, ":"):
		return fmt.Sprintf("line %d needs a colon at its end", n+1)
	case line >= 1 && line <= len(lines) && bytes.Count(lines[line-1], []byte(": ")) > 1 && !bytes.Contains(lines[line-1], []byte("{")):
		return "quote a value that has a colon and a space in it"
	}
	return "is the line indented as those of the same level?"
}

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

// Nearest returns the candidate with the smallest edit distance to word, or "" if none is near enough to be a typing mistake. A
// candidate that has no letter in common with word is never near enough. Among equally near candidates, the first is returned.
func Nearest(word string, candidates []string) string {
	best, limit := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		if len(word)-len(c) >= limit || len(c)-len(word) >= limit {
			continue // the distance is at least the difference of the lengths
		}
		if d := editDistance(word, c); d < limit && (word == "" || d < max(len(word), len(c))) {
			best, limit = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b.
func editDistance(a, b string) int {
	distance := make([][]int, len(a)+1) // [i][j] is the distance between a[:i] and b[:j]
	for i := range distance {
		distance[i] = make([]int, len(b)+1)
		for j := range distance[i] {
			if i == 0 || j == 0 {
				distance[i][j] = i + j
				continue
			}
			distance[i][j] = min(distance[i-1][j], distance[i][j-1], distance[i-1][j-1]) + 1
			if a[i-1] == b[j-1] {
				distance[i][j] = distance[i-1][j-1]
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				distance[i][j] = min(distance[i][j], distance[i-2][j-2]+1)
			}
		}
	}
	return distance[len(a)][len(b)]
}
