package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"

	"hinit/internal/dotenv"
	"hinit/internal/fsutil"
)

// Env returns the variables that the .env of profile sets. Without the file there are none.
func (s *Store) Env(profile string) (vars map[string]string, err error) {
	vars = make(map[string]string)
	err = s.in(profile, func(d *fsutil.Dir, home string) error {
		text, err := d.ReadFile(filepath.Join(home, envFile), maxInput)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, v := range dotenv.Parse(string(text)) {
			vars[v.Name] = v.Value()
		}
		return err
	})
	return vars, err
}
