package home

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Default is the name of the root profile, whose home is the root directory itself (contract, section 4).
const Default = "default"

const maxNameLength = 64

// Normalize trims and lowercases a name that a user typed. Every command calls it before it uses a name.
func Normalize(name string) string {
	return strings.ToLower(strings.TrimSpace(name))
}

// CheckName returns an error if name, already normalized, can't be the name of a named profile. It checks the pattern, the
// reserved words, and "default", which is never a named profile (contract, section 4). A name that passes is a single path
// element, so a path that is joined from it and a directory stays in the directory.
func CheckName(name string) error {
	pattern := regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	switch {
	case name == Default:
		return fmt.Errorf("'%s' is the built-in root profile and cannot be created, deleted or renamed", name)
	case slices.Contains([]string{"hermes", "test", "tmp", "root", "sudo"}, name):
		return fmt.Errorf("profile name '%s' is reserved", name)
	case len(name) > maxNameLength || !pattern.MatchString(name):
		return fmt.Errorf("invalid profile name '%s': use 1 to %d characters of a-z, 0-9, '_' and '-', "+
			"starting with a letter or a digit", name, maxNameLength)
	}
	return nil
}
