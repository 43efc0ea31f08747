package profiles

import (
	"slices"
	"strings"

	"hinit/internal/dotenv"
	"hinit/internal/fsutil"
	"hinit/internal/redact"
)

// Limits on the secrets that are taken from a .env file. The agent writes this file. Each secret costs memory in PID 1, and time
// because every log line is searched for it.
const (
	leastSecret     = 8 // shorter values may be ordinary words
	mostSecrets     = 256
	mostSecretBytes = 16 << 10 // total for all values of a profile
)

// Secrets returns the secrets in the profile's .env, so that they can be removed from logs. Secrets are values of at least eight
// bytes whose variable is named like a secret, and passwords in URLs (package redact). Each line of a value is returned
// separately. Secrets returns at most 256 values and 16 KB; more reports that it left some out. A missing file has no secrets.
func (s *Store) Secrets(profile string) (values []string, more bool, err error) {
	err = s.inHome(profile, func(d *fsutil.Dir, home string) error {
		vars, err := parseEnv(d, home)
		values, more = secretsIn(vars)
		return err
	})
	return values, more, err
}

// secretsIn returns the secrets among the variables vars of a .env file. more reports that the limits left some out.
func secretsIn(vars []dotenv.Var) (secrets []string, more bool) {
	room := mostSecretBytes
	for _, v := range vars {
		for _, form := range []string{redact.Secret(v.Name, v.Raw), redact.Secret(v.Name, dotenv.Unescape(v.Raw))} {
			for part := range strings.Lines(form) {
				part = strings.TrimRight(part, "\r\n")
				switch {
				case len(part) < leastSecret || placeholder(part) || slices.Contains(secrets, part):
				case len(secrets) == mostSecrets || len(part) > room:
					return secrets, true
				default:
					// without Clone, this substring would keep the whole file in memory
					secrets, room = append(secrets, strings.Clone(part)), room-len(part)
				}
			}
		}
	}
	return secrets, false
}

// placeholder reports whether value is a word that people often write where a secret is missing.
func placeholder(value string) bool {
	return slices.Contains([]string{"disabled", "required", "optional", "undefined", "changeme", "password"}, strings.ToLower(value))
}
