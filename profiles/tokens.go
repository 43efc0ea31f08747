package profiles

import (
	"crypto/sha256"
	"strings"

	"hinit/internal/fsutil"
)

// Exclusive is a value that two running gateways must not both use, such as a bot token. Only a hash of the value is stored.
type Exclusive struct {
	Name  string // name of the environment variable
	Value [sha256.Size]byte
}

// mostExclusive is the largest number of exclusive values that are read from one profile.
const mostExclusive = 16

// Exclusives returns the values in the profile's .env that only its own gateway may use: the tokens of its chat platforms, and
// its port.
func (s *Store) Exclusives(profile string) (list []Exclusive, err error) {
	err = s.inHome(profile, func(d *fsutil.Dir, home string) error {
		vars, err := parseEnv(d, home)
		for _, v := range vars {
			token := strings.HasSuffix(v.Name, "_BOT_TOKEN") || strings.HasSuffix(v.Name, "_APP_TOKEN") || v.Name == "API_SERVER_PORT"
			if token && v.Value() != "" && !placeholder(v.Value()) && len(list) < mostExclusive {
				list = append(list, Exclusive{v.Name, sha256.Sum256([]byte(v.Value()))})
			}
		}
		return err
	})
	return list, err
}
