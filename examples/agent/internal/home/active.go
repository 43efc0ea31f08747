package home

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func (h Home) activePath() string { return filepath.Join(h.Root, "active_profile") }

// Active returns the profile that commands use without -p. This is the name in the file active_profile, or Default if the
// file has no valid name.
func (h Home) Active() string {
	data, err := os.ReadFile(h.activePath())
	if err != nil {
		return Default
	}
	name := Normalize(string(data))
	if CheckName(name) != nil {
		return Default
	}
	return name
}

// SetActive sets the profile that commands use without -p. For Default it removes the file. The profile must exist.
func (h Home) SetActive(name string) error {
	if name == Default {
		if err := os.Remove(h.activePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot reset the active profile: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(h.activePath(), []byte(name+"\n"), 0o644); err != nil {
		return fmt.Errorf("cannot set the active profile: %w", err)
	}
	return nil
}
