package profiles

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/dotenv"
	"hinit/internal/fsutil"
	"hinit/internal/redact"
)

// Limits on the secrets that are taken from a .env file, which the agent writes. Each secret costs memory in PID 1. It also
// costs time, because every log line is searched for every secret.
const (
	minSecretLength = 8 // shorter values may be ordinary words
	maxSecrets      = 256
	maxSecretBytes  = 16 << 10 // total for all values of a profile
)

// Secrets returns the secrets in the profile's .env, so that they can be removed from logs. Secrets are values of at least eight
// bytes whose variable is named like a secret, and passwords in URLs (package redact). Each line of a value is returned
// separately. Secrets returns at most 256 values and 16 KB; the result more is true if it left some out. For a missing file it
// returns no secrets.
func (s *Store) Secrets(profile string) (values []string, more bool, err error) {
	err = s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		vars, err := parseEnv(d, home)
		values, more = secretsIn(vars)
		return err
	})
	return values, more, err
}

// secretsIn returns the secrets among the variables of a .env file. The result more is true if the limits left some secrets out.
func secretsIn(vars []dotenv.Var) (secrets []string, more bool) {
	room := maxSecretBytes
	for _, v := range vars {
		for _, form := range []string{redact.SecretPart(v.Name, v.Raw), redact.SecretPart(v.Name, dotenv.Unescape(v.Raw))} {
			for part := range strings.Lines(form) {
				part = strings.TrimRight(part, "\r\n")
				switch {
				case len(part) < minSecretLength || isPlaceholder(part) || slices.Contains(secrets, part):
				case len(secrets) == maxSecrets || len(part) > room:
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

// isPlaceholder reports whether value is a word, such as "changeme", that people often write in place of a secret.
func isPlaceholder(value string) bool {
	return slices.Contains([]string{"disabled", "required", "optional", "undefined", "changeme", "password"}, strings.ToLower(value))
}

// Exclusive is a value that two running gateways must not both use, such as a bot token. Only a hash of the value is stored.
type Exclusive struct {
	Name  string // name of the environment variable
	Value [sha256.Size]byte
}

// maxExclusive is the largest number of exclusive values that are read from one profile, and maxExclusiveName the largest length of
// their names.
const maxExclusive, maxExclusiveName = 16, 100

// Exclusives returns the values in the profile's .env that only its own gateway may use: the tokens of its chat platforms, and
// its port.
func (s *Store) Exclusives(profile string) ([]Exclusive, error) {
	return fromHome(s, profile, func(d *fsutil.Dir, home string) (list []Exclusive, err error) {
		vars, err := parseEnv(d, home)
		for _, v := range vars {
			token := strings.HasSuffix(v.Name, "_BOT_TOKEN") || strings.HasSuffix(v.Name, "_APP_TOKEN") || v.Name == "API_SERVER_PORT"
			if token && len(v.Name) <= maxExclusiveName && v.Value() != "" && !isPlaceholder(v.Value()) && len(list) < maxExclusive {
				// without Clone, this substring would keep the whole file in memory
				list = append(list, Exclusive{strings.Clone(v.Name), sha256.Sum256([]byte(v.Value()))})
			}
		}
		return list, err
	})
}

// Env returns the variables in the .env file of a profile. It returns none if the file is missing.
func (s *Store) Env(profile string) (map[string]string, error) { return fromHome(s, profile, readEnv) }

// EachEnv calls each with the variables of several profiles, like Env, with a single change of identity. It leaves out a profile
// whose file can't be read. The files of all profiles together can be large, so each should keep only what it needs. An error means
// that the volume can't be used.
func (s *Store) EachEnv(profiles []string, each func(profile string, vars map[string]string)) error {
	return s.withVolume(func(d *fsutil.Dir) error {
		for _, profile := range profiles {
			home, err := homeOf(profile)
			if err != nil {
				continue
			}
			if env, err := readEnv(d, home); err == nil {
				each(profile, env)
			}
		}
		return nil
	})
}

func readEnv(d *fsutil.Dir, home string) (map[string]string, error) {
	parsed, err := parseEnv(d, home)
	vars := make(map[string]string)
	for _, v := range parsed {
		vars[v.Name] = v.Value()
	}
	return vars, err
}

// maxVariableLines is the maximum number of lines in a .env file that hinit reads. It limits the time and the memory of PID 1 for the
// file, which the agent writes.
const maxVariableLines = 10_000

// parseEnv returns the variables in the .env file of a home, in the order of the file.
func parseEnv(d *fsutil.Dir, home string) ([]dotenv.Var, error) {
	rel := filepath.Join(home, envFile)
	text, err := d.ReadFile(rel, maxInput)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case bytes.Count(text, []byte("\n")) > maxVariableLines:
		return nil, fmt.Errorf("cannot read %q: it has more than %d lines", filepath.Join(d.Path(), rel), maxVariableLines)
	}
	return dotenv.Parse(string(text)), err
}
