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

// Limits on the secrets that are read from a .env file, which the agent writes. Each costs PID 1 memory, and time, because every
// log line is searched for every secret.
const (
	minSecretLength = 8 // shorter values may be ordinary words
	maxSecrets      = 256
	maxSecretBytes  = 16 << 10 // maximum size in bytes of all values of a profile together
)

// Secrets returns the secrets in the .env of a profile, so that logs can hide them. A secret is a password in a URL, or a value of
// at least eight bytes whose variable is named like a secret (package redact). Each line of a value counts as a value. Secrets
// returns at most 256 values and 16 KiB; more is true if there are others. For a missing file it returns none.
func (s *Store) Secrets(profile string) (values []string, more bool, err error) {
	err = s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		vars, err := parseEnv(d, home)
		values, more = secretsIn(vars)
		return err
	})
	return values, more, err
}

// secretsIn returns the secrets among the variables of a .env file. more is true if the limits left some out.
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
					// copy the value, because a substring would keep the whole file in memory
					secrets, room = append(secrets, strings.Clone(part)), room-len(part)
				}
			}
		}
	}
	return secrets, false
}

// isPlaceholder reports whether value is a word such as "changeme", which people write where a secret is still missing.
func isPlaceholder(value string) bool {
	return slices.Contains([]string{"disabled", "required", "optional", "undefined", "changeme", "password"}, strings.ToLower(value))
}

// Exclusive is a value that two running gateways must not both use, such as a bot token. Two such values are compared by their
// hashes, so that the tokens themselves need not be kept.
type Exclusive struct {
	Name  string // name of the environment variable
	Value [sha256.Size]byte
}

// maxExclusive is the maximum number of exclusive values of one profile, and maxExclusiveName the maximum length of their names.
const maxExclusive, maxExclusiveName = 16, 100

// Exclusives returns the values in a profile's .env that only one gateway may use: the tokens of chat platforms, and its port.
func (s *Store) Exclusives(profile string) ([]Exclusive, error) {
	return fromHome(s, profile, func(d *fsutil.Dir, home string) (list []Exclusive, err error) {
		vars, err := parseEnv(d, home)
		for _, v := range vars {
			token := strings.HasSuffix(v.Name, "_BOT_TOKEN") || strings.HasSuffix(v.Name, "_APP_TOKEN") || v.Name == "API_SERVER_PORT"
			if token && len(v.Name) <= maxExclusiveName && v.Value() != "" && !isPlaceholder(v.Value()) && len(list) < maxExclusive {
				// copy the name, because a substring would keep the whole file in memory
				list = append(list, Exclusive{strings.Clone(v.Name), sha256.Sum256([]byte(v.Value()))})
			}
		}
		return list, err
	})
}

// Env returns the variables in the .env file of a profile, and none if the file is missing.
func (s *Store) Env(profile string) (map[string]string, error) { return fromHome(s, profile, readEnv) }

// EachEnv is Env for several profiles, with one change of identity. It calls each once for a profile, and skips a profile whose
// file can't be read. All files together can be large, so each should keep only the needed values. An error means that the
// volume can't be used.
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

// maxVariableLines is the maximum number of lines in a .env file that hinit reads. It limits what a file of the agent costs PID 1.
const maxVariableLines = 10_000

// parseEnv returns the variables in the .env file of a home, in their order.
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
