package home

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// soulFile is the name of the marker file. PID 1 treats a directory with this file as a profile.
const soulFile = "SOUL.md"

const soulText = `# Soul

You are a small example agent. You answer with an echo of what you are told.
`

// Create makes the home of a new profile: its directories, a private .env and, last, the marker SOUL.md. So a program that
// watches the profiles directory never sees an incomplete profile. Create returns an error if the directory already exists.
// After an error it leaves nothing behind.
func (h Home) Create(name string) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	dir := h.ProfileDir(name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("cannot create profile '%s': %w", name, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("profile '%s' already exists at %s", name, dir)
		}
		return "", fmt.Errorf("cannot create profile '%s': %w", name, err)
	}
	if err := createFiles(dir); err != nil {
		err = fmt.Errorf("cannot create profile '%s': %w", name, err)
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

func createFiles(dir string) error {
	for _, sub := range []string{"memories", "sessions", "skills", "skins", "logs", "plans", "workspace", "cron", "home"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".env"), nil, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, soulFile), []byte(soulText), 0o644)
}

// List returns the names of all profiles. Default is first. Then follows every directory below profiles that has the marker
// and a valid name, in byte order.
func (h Home) List() ([]string, error) {
	names := []string{DefaultProfile}
	entries, err := os.ReadDir(filepath.Join(h.Root, "profiles"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return names, fmt.Errorf("cannot list profiles: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if CheckName(name) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(h.ProfileDir(name), soulFile)); err == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// RemoveMarker removes the marker of a profile, so that PID 1 does not treat the directory as a profile any more.
func (h Home) RemoveMarker(name string) error {
	if err := os.Remove(filepath.Join(h.ProfileDir(name), soulFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove profile '%s': %w", name, err)
	}
	return nil
}

// Remove deletes the home of a profile. It tries several times, because a gateway that a supervisor has started again may add
// files meanwhile. It keeps the profile's log directory, which is below the root.
func (h Home) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	var err error
	for range 3 {
		if err = os.RemoveAll(h.ProfileDir(name)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("cannot remove profile '%s': %w", name, err)
}

// Rename gives another name to the home of a profile. Both names must be valid, and no profile may have the new one.
func (h Home) Rename(from, to string) error {
	for _, name := range []string{from, to} {
		if err := CheckName(name); err != nil {
			return err
		}
	}
	if h.Exists(to) {
		return fmt.Errorf("profile '%s' already exists at %s", to, h.ProfileDir(to))
	}
	if err := os.Rename(h.ProfileDir(from), h.ProfileDir(to)); err != nil {
		return fmt.Errorf("cannot rename profile '%s': %w", from, err)
	}
	return nil
}
