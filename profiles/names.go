package profiles

import (
	"errors"
	"fmt"
	"strings"
)

// Default is the name of the root profile. Its home is the root of the volume. No command creates, deletes or renames it.
const Default = "default"

// slotPrefix is the prefix in the names of all gateways' slots. A slot is a service directory in the scan directory of s6.
const slotPrefix = "gateway-"

// maxServiceName is the maximum length of the name of a profile that has a gateway (contract, section 4).
const maxServiceName = 251

var (
	// ErrInvalidName means that a profile's name is invalid. The error that wraps it gives the reason.
	ErrInvalidName = errors.New("invalid profile name")
	// ErrNotExist means that a profile doesn't exist.
	ErrNotExist = errors.New("no such profile")
)

// Normalize returns s in lower case and without surrounding white space: " Default" becomes "default". The agent's commands treat
// names in this way. Normalize doesn't validate the name (contract, section 4).
func Normalize(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// ValidServiceName checks whether a profile with this name can have a gateway. The name must have 1 to 251 characters of a-z, 0-9,
// "_" and "-", and begin with a letter or digit. The error wraps [ErrInvalidName] and says which rule is broken (contract, section
// 4).
func ValidServiceName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	switch {
	case name == "":
		return nameError(name, "it is empty")
	case len(name) > maxServiceName:
		return nameError(name, fmt.Sprintf("it is longer than %d characters", maxServiceName))
	case !strings.Contains(letters, name[:1]):
		return nameError(name, "it must start with a lower-case letter or a digit")
	case strings.Trim(name, letters+"_-") != "":
		return nameError(name, "only a-z, 0-9, \"_\" and \"-\" are allowed")
	}
	return nil
}

// NameProblem returns why a directory in profiles/ with this name can't be a profile, or nil. It allows names that are longer
// than the 64 characters of the command line, because older agents made such names.
func NameProblem(name string) error {
	switch name {
	case Default:
		return nameError(name, "the name belongs to the root profile")
	case "hermes", "test", "tmp", "root", "sudo":
		return nameError(name, "the name is reserved")
	}
	return ValidServiceName(name)
}

// SlotName returns the name of the slot of a profile's gateway: "gateway-" and the name of the profile.
func SlotName(profile string) string { return slotPrefix + profile }

// SlotProfile returns the profile to which the slot of a gateway belongs. If no gateway has this slot, or the profile's name is
// invalid, ok is false.
func SlotProfile(slot string) (profile string, ok bool) {
	profile, ok = strings.CutPrefix(slot, slotPrefix)
	if !ok || ValidServiceName(profile) != nil {
		return "", false
	}
	return profile, true
}

func nameError(name, reason string) error {
	if len(name) > maxServiceName+1 { // The name comes from outside and may have any length.
		name = name[:maxServiceName+1]
	}
	return fmt.Errorf("%w %q: %s", ErrInvalidName, name, reason)
}

// Compare compares two names in the order of all lists: the default profile first, then byte order.
func Compare(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == Default:
		return -1
	case b == Default:
		return 1
	}
	return strings.Compare(a, b)
}
