package profiles

import (
	"slices"
	"strings"

	"hinit/internal/dotenv"
	"hinit/internal/fsutil"
	"hinit/internal/redact"
)

// Limits of the values from a .env. The agent writes that file, and every value costs memory of PID 1 and time for each line of
// the log.
const (
	leastSecret     = 8 // shorter values may be ordinary words
	mostSecrets     = 256
	mostSecretBytes = 16 << 10 // of all values together
)

// Secrets returns secret values of the profile's .env: values of at least eight bytes whose variable has the name of a secret,
// and passwords in URLs (package redact). It returns each line of a value separately, and at most 256 values and 16 KB; more
// reports that it left some out. A missing file has no secrets.
func (s *Store) Secrets(profile string) (values []string, more bool, err error) {
	err = s.inHome(profile, func(d *fsutil.Dir, home string) error {
		vars, err := parseEnv(d, home)
		values, more = secretsIn(vars)
		return err
	})
	return values, more, err
}

// secretsIn returns the secrets in the variables of a .env.
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
					// without Clone, the value would keep the whole text in memory
					secrets, room = append(secrets, strings.Clone(part)), room-len(part)
				}
			}
		}
	}
	return secrets, false
}

// placeholder reports whether a value is a usual placeholder for a missing secret.
func placeholder(value string) bool {
	return slices.Contains([]string{"disabled", "required", "optional", "undefined", "changeme", "password"}, strings.ToLower(value))
}
