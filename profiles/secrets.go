package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/fsutil"
	"hinit/internal/redact"
)

// leastSecret is the length from which on a value can be a secret: shorter ones are in ordinary words.
const leastSecret = 8

// Secrets returns the values in the profile's .env whose names say that they are secret, and passwords in URLs (package redact), as
// far as they have at least eight bytes. A value of several lines comes as its lines. Without the file there are none.
func (s *Store) Secrets(profile string) (values []string, err error) {
	err = s.in(profile, func(d *fsutil.Dir, home string) error {
		text, err := d.ReadFile(filepath.Join(home, envFile), maxInput)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			values = secretsIn(string(text))
		}
		return err
	})
	return values, err
}

// secretsIn finds the secrets in the text of a .env: lines NAME=VALUE, "export" before them or not, where a value may be in
// quotes, and then have several lines.
func secretsIn(text string) []string {
	var secrets []string
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		value = strings.TrimSpace(value)
		raw := value
		if value != "" && strings.IndexByte(`"'`, value[0]) >= 0 {
			raw, text = quoted(value, text)
		} else if i := strings.Index(value, " #"); i >= 0 {
			raw = strings.TrimSpace(value[:i])
		}
		name = strings.TrimSpace(name)
		for _, form := range []string{redact.Secret(name, raw), redact.Secret(name, unescape.Replace(raw))} {
			for part := range strings.Lines(form) {
				part = strings.TrimRight(part, "\r\n")
				if len(part) >= leastSecret && !placeholder(part) && !slices.Contains(secrets, part) {
					secrets = append(secrets, part)
				}
			}
		}
	}
	return secrets
}

var unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "", `\"`, `"`, `\'`, `'`)

// quoted returns what is between the quote that value begins with and the next one, which may be lines behind it, and what
// follows that line. Without a next one the value is the line.
func quoted(value, rest string) (inner, after string) {
	all := value[1:] + "\n" + rest
	for i := 0; i < len(all); i++ {
		switch all[i] {
		case '\\':
			i++
		case value[0]:
			_, after, _ = strings.Cut(all[i:], "\n")
			return all[:i], after
		}
	}
	return value[1:], rest
}

// placeholder reports whether a value stands there because there is no secret.
func placeholder(value string) bool {
	return slices.Contains([]string{"disabled", "required", "optional", "undefined", "changeme", "password"}, strings.ToLower(value))
}
