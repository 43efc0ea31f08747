// Package redact finds secrets: in variables by their names, and in text by the shapes of tokens and by given values. Everything
// that shows values follows its one list of names.
//
// A name can only hint. A secret in a variable with an innocent name is shown. The package owns no goroutine and has no state.
package redact

import (
	"net/url"
	"slices"
	"strings"
)

// Hidden stands where a secret was.
const Hidden = "********"

var (
	// parts say that a variable is secret wherever they stand in its name.
	parts = []string{"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTHORIZATION", "COOKIE"}
	// words say so only as a whole word between underscores: COMPASS and PWD are no secrets.
	words = []string{"PASS", "PW", "PWD", "PSWD", "PAT"}
	// harmless ends say where something is or how large it is.
	harmless = []string{"_URL", "_FILE", "_PATH", "_DIR", "_HOST", "_PORT", "_TTL", "_TIMEOUT", "_LIMIT", "_NAME", "TOKENS"}
)

// Name reports whether the name of a variable says that its value is secret.
func Name(name string) bool {
	name = strings.ToUpper(name)
	if slices.ContainsFunc(harmless, func(end string) bool { return strings.HasSuffix(name, end) }) {
		return false
	}
	if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) }) {
		return true
	}
	split := strings.Split(name, "_")
	return len(split) > 1 && slices.ContainsFunc(split, func(word string) bool { return slices.Contains(words, word) }) || name == "PASS"
}

// Secret returns what is secret in the value of a variable: all of it, the password of a URL, or nothing.
func Secret(name, value string) string {
	if Name(name) {
		return value
	}
	from, to := password(value)
	return value[from:to]
}

// Value returns the value of a variable as it may be shown.
func Value(name, value string) string {
	if Name(name) {
		return Hidden
	}
	from, to := password(value)
	if from == to {
		return value
	}
	return value[:from] + Hidden + value[to:]
}

// Address returns the address of a webhook as it may be shown. With the whole address anybody can call the webhook, so its path
// and query are as secret as the user before its host.
func Address(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return Hidden
	}
	shown := u.Scheme + "://"
	if u.User != nil {
		shown += Hidden + "@"
	}
	shown += u.Host
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return shown + "/" + Hidden
	}
	return shown + u.Path
}

// password finds the password in a URL such as postgres://user:password@host/ (RFC 3986, section 3.2.1). Without one from and to
// are equal.
func password(value string) (from, to int) {
	_, rest, ok := strings.Cut(value, "://")
	if !ok {
		return 0, 0
	}
	begin := len(value) - len(rest)
	if end := strings.IndexAny(rest, "/?# \t\n"); end >= 0 {
		rest = rest[:end]
	}
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return 0, 0
	}
	colon := strings.IndexByte(rest[:at], ':')
	if colon < 0 {
		return 0, 0
	}
	return begin + colon + 1, begin + at
}
