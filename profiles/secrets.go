package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/dotenv"
	"hinit/internal/fsutil"
	"hinit/internal/redact"
)

// leastSecret is the length from which on a value can be a secret: shorter ones are in ordinary words.
const leastSecret = 8

// Secrets returns the values in the profile's .env whose names say that they are secret, and passwords in URLs (package redact), of
// at least eight bytes. A value of several lines comes as its lines. Without the file there are none.
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

// secretsIn finds the secrets in the text of a .env.
func secretsIn(text string) []string {
	var secrets []string
	for _, v := range dotenv.Parse(text) {
		for _, form := range []string{redact.Secret(v.Name, v.Raw), redact.Secret(v.Name, dotenv.Unescape(v.Raw))} {
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

// placeholder reports whether a value stands there because there is no secret.
func placeholder(value string) bool {
	return slices.Contains([]string{"disabled", "required", "optional", "undefined", "changeme", "password"}, strings.ToLower(value))
}
