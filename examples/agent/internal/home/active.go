package home

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func (h Home) activeProfileFile() string { return filepath.Join(h.Root, "active_profile") }

// ActiveProfile returns the profile that commands use without -p. This is the name in the file active_profile, or DefaultProfile
// if the file has no valid name.
func (h Home) ActiveProfile() string {
	data, err := os.ReadFile(h.activeProfileFile())
	if err != nil {
		return DefaultProfile
	}
	name := Normalize(string(data))
	if CheckName(name) != nil {
		return DefaultProfile
	}
	return name
}

// SetActiveProfile sets the profile that commands use without -p. For DefaultProfile it removes the file. The profile must exist.
func (h Home) SetActiveProfile(name string) error {
	if name == DefaultProfile {
		if err := os.Remove(h.activeProfileFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot reset the active profile: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(h.activeProfileFile(), []byte(name+"\n"), 0o644); err != nil {
		return fmt.Errorf("cannot set the active profile: %w", err)
	}
	return nil
}
