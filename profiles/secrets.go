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

// Limits on the secrets that are read from a .env file, which the agent writes. Each secret costs PID 1 memory and time, because
// every log line is searched for every secret.
const (
	minSecretLength = 8 // Shorter values may be ordinary words.
	maxSecrets      = 256
	maxSecretBytes  = 16 << 10 // Maximum total size of a profile's secrets in bytes.
)

// Secrets returns the secrets in the .env of a profile, so that logs can hide them. A secret is a password in a URL, or a value
// of at least eight bytes whose variable has a secret name (package redact). Each line of a value counts as a value. Secrets
// returns at most 256 values and 16 KiB; more reports whether others exist. If the file is missing, it returns none.
func (s *Store) Secrets(profile string) (values []string, more bool, err error) {
	err = s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		vars, err := parseEnv(d, home)
		values, more = secretsIn(vars)
		return err
	})
	return values, more, err
}

// secretsIn returns the secrets among the variables of a .env file. more reports whether the limits left some out.
func secretsIn(vars []dotenv.Var) (secrets []string, more bool) {
	room := maxSecretBytes
	for _, v := range vars {
		for _, form := range []string{redact.SecretPart(v.Name, v.RawValue), redact.SecretPart(v.Name, dotenv.Unescape(v.RawValue))} {
			for part := range strings.Lines(form) {
				part = strings.TrimRight(part, "\r\n")
				switch {
				case len(part) < minSecretLength || isPlaceholder(part) || slices.Contains(secrets, part):
				case len(secrets) == maxSecrets || len(part) > room:
					return secrets, true
				default:
					// Copy the value: a substring would keep the whole file in memory.
					secrets, room = append(secrets, strings.Clone(part)), room-len(part)
				}
			}
		}
	}
	return secrets, false
}

// isPlaceholder reports whether value is a word such as "changeme", which stands for a secret that is still to be set.
func isPlaceholder(value string) bool {
	return slices.Contains([]string{"disabled", "required", "optional", "undefined", "changeme", "password"}, strings.ToLower(value))
}

// ExclusiveValue is a value that two running gateways must not both use, such as a bot token. It contains a hash of the value, which
// is enough to compare two values. So the tokens themselves need not be kept in memory.
type ExclusiveValue struct {
	Name  string // Name of the environment variable.
	Value [sha256.Size]byte
}

// maxExclusive is the maximum number of exclusive values of one profile. maxExclusiveName is the maximum length of their names.
const maxExclusive, maxExclusiveName = 16, 100

// ExclusiveValues returns the values in a profile's .env that only one gateway at a time may use: tokens of chat platforms, and its
// port.
func (s *Store) ExclusiveValues(profile string) ([]ExclusiveValue, error) {
	return readHome(s, profile, func(d *fsutil.Dir, home string) (list []ExclusiveValue, err error) {
		vars, err := parseEnv(d, home)
		for _, v := range vars {
			token := strings.HasSuffix(v.Name, "_BOT_TOKEN") || strings.HasSuffix(v.Name, "_APP_TOKEN") || v.Name == "API_SERVER_PORT"
			if token && len(v.Name) <= maxExclusiveName && v.Value() != "" && !isPlaceholder(v.Value()) && len(list) < maxExclusive {
				// Copy the name: a substring would keep the whole file in memory.
				list = append(list, ExclusiveValue{strings.Clone(v.Name), sha256.Sum256([]byte(v.Value()))})
			}
		}
		return list, err
	})
}

// Env returns the variables in the .env file of a profile. If the file is missing, it returns none.
func (s *Store) Env(profile string) (map[string]string, error) { return readHome(s, profile, readEnv) }

// EachEnv is Env for several profiles, with one change of identity for all. It calls each for each profile whose file can be
// read. All files together can be large, so each should keep only the values that are needed. An error means that the volume
// can't be used.
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

// maxVariableLines is the maximum number of lines that hinit reads in a .env file. It limits the cost for PID 1 of a file that
// the agent writes.
const maxVariableLines = 10_000

// parseEnv returns the variables in the .env file of a home, in their order.
func parseEnv(d *fsutil.Dir, home string) ([]dotenv.Var, error) {
	rel := filepath.Join(home, envFile)
	text, err := d.ReadFile(rel, maxInputSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case bytes.Count(text, []byte("\n")) > maxVariableLines:
		return nil, fmt.Errorf("cannot read %q: it has more than %d lines", filepath.Join(d.Path(), rel), maxVariableLines)
	}
	return dotenv.Parse(string(text)), err
}
