// Package redact finds and hides secrets: environment variables whose names suggest a secret, and text that has the shape of a
// token or is a given value. All commands and pages that show values use its list of names.
//
// A name is only a hint: a secret in a variable with a harmless name is not hidden. The package owns no goroutine and has no
// state.
package redact

import (
	"net/url"
	"slices"
	"strings"
)

// Hidden is the text that replaces a secret value.
const Hidden = "********"

var (
	// A variable is secret if its name contains one of these parts anywhere.
	secretNameParts = []string{"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTHORIZATION", "COOKIE"}
	// A variable is also secret if one of these is a whole word of its name, between underscores. So COMPASS is not secret.
	secretNameWords = []string{"PASS", "PW", "PWD", "PSWD", "PAT"}
	// A variable with one of these suffixes is not secret: its value is a place or a size.
	harmlessSuffixes = []string{"_URL", "_FILE", "_PATH", "_DIR", "_HOST", "_PORT", "_TTL", "_TIMEOUT", "_LIMIT", "_NAME", "TOKENS"}
)

// IsSecretName reports whether the name of a variable suggests that its value is secret.
func IsSecretName(name string) bool {
	name = strings.ToUpper(name)
	if slices.ContainsFunc(harmlessSuffixes, func(end string) bool { return strings.HasSuffix(name, end) }) {
		return false
	}
	if slices.ContainsFunc(secretNameParts, func(part string) bool { return strings.Contains(name, part) }) {
		return true
	}
	// Don't use strings.Split here: an agent may choose a name of a megabyte.
	return name == "PASS" || strings.Contains(name, "_") &&
		slices.ContainsFunc(secretNameWords, func(word string) bool { return strings.Contains("_"+name+"_", "_"+word+"_") })
}

// SecretPart returns the secret part of a variable's value: the whole value, the password in a URL, or "".
func SecretPart(name, value string) string {
	if IsSecretName(name) {
		return value
	}
	from, to := passwordRange(value)
	return value[from:to]
}

// HideValue returns the value of a variable with its secret part hidden.
func HideValue(name, value string) string {
	if IsSecretName(name) {
		return Hidden
	}
	from, to := passwordRange(value)
	if from == to {
		return value
	}
	return value[:from] + Hidden + value[to:]
}

// HideAddress returns the address of a webhook with its secrets hidden. Anybody with the whole address can call the webhook, so
// its path and query are as secret as the user name before the host.
func HideAddress(address string) string {
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

// passwordRange returns the range of the password in a URL such as postgres://user:password@host/ (RFC 3986, section 3.2.1). If the
// URL has no password, from and to are equal.
func passwordRange(value string) (from, to int) {
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
