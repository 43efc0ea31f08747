package home

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// DefaultProfile is the name of the root profile, whose home is the root directory itself.
const DefaultProfile = "default"

const maxNameLength = 64

// Normalize trims a name that a user has typed, and converts it to lower case. Every command calls it before it uses a name.
func Normalize(name string) string {
	return strings.ToLower(strings.TrimSpace(name))
}

// CheckName returns an error if a normalized name can't be the name of a named profile. It checks the pattern and the
// reserved words, which include "default". An accepted name is a single path element, so a path that is joined from a
// directory and the name stays in the directory.
func CheckName(name string) error {
	pattern := regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	switch {
	case name == DefaultProfile:
		return fmt.Errorf("'%s' is the built-in root profile and cannot be created, deleted or renamed", name)
	case slices.Contains([]string{"hermes", "test", "tmp", "root", "sudo"}, name):
		return fmt.Errorf("profile name '%s' is reserved", name)
	case len(name) > maxNameLength || !pattern.MatchString(name):
		return fmt.Errorf("invalid profile name '%s': use 1 to %d characters of a-z, 0-9, '_' and '-', "+
			"starting with a letter or a digit", name, maxNameLength)
	}
	return nil
}
