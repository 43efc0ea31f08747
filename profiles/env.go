package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"

	"hinit/internal/dotenv"
	"hinit/internal/fsutil"
)

// Env returns the variables in the .env file of a profile. It returns none if the file is missing.
func (s *Store) Env(profile string) (vars map[string]string, err error) {
	err = s.inHome(profile, func(d *fsutil.Dir, home string) error {
		vars, err = readEnv(d, home)
		return err
	})
	return vars, err
}

// Envs works like Env for several profiles, with a single change of identity. The result maps each profile to its variables. A
// profile whose file can't be read has no entry. An error means that the volume can't be used.
func (s *Store) Envs(profiles []string) (vars map[string]map[string]string, err error) {
	vars = make(map[string]map[string]string, len(profiles))
	err = s.together(func(d *fsutil.Dir) error {
		for _, profile := range profiles {
			home, err := homeOf(profile)
			if err != nil {
				continue
			}
			if env, err := readEnv(d, home); err == nil {
				vars[profile] = env
			}
		}
		return nil
	})
	return vars, err
}

func readEnv(d *fsutil.Dir, home string) (map[string]string, error) {
	parsed, err := parseEnv(d, home)
	vars := make(map[string]string)
	for _, v := range parsed {
		vars[v.Name] = v.Value()
	}
	return vars, err
}

// parseEnv returns the variables in the .env file of a home, in the order of the file.
func parseEnv(d *fsutil.Dir, home string) ([]dotenv.Var, error) {
	text, err := d.ReadFile(filepath.Join(home, envFile), maxInput)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return dotenv.Parse(string(text)), err
}
