package profiles

import (
	"errors"
	"fmt"
	"strings"
)

// Default is the name of the root profile, whose home is the root of the volume. No command creates, deletes or renames it.
const Default = "default"

// slotPrefix is the prefix of the name of every gateway's slot: the service directory of the gateway in the scan directory of
// s6.
const slotPrefix = "gateway-"

// maxServiceName is the maximum length of the name of a profile with a gateway (contract, section 4).
const maxServiceName = 251

var (
	// ErrName means that a profile's name is invalid. The error that wraps it says why.
	ErrName = errors.New("invalid profile name")
	// ErrNotExist means that there is no such profile.
	ErrNotExist = errors.New("no such profile")
)

// Normalize returns s in lower case and without white space around it, as the agent's commands understand names: " Default" becomes
// "default". It doesn't validate (contract, section 4).
func Normalize(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// ValidServiceName checks whether a profile with this name can have a gateway: 1 to 251 characters of a-z, 0-9, "_" and "-", a
// letter or digit first. The error wraps [ErrName] and says which rule is broken (contract, section 4).
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

// NameProblem says why a directory in profiles/ with this name can't be a profile. It returns nil for a valid name. Unlike the
// command line, which allows 64 characters, it allows longer names, because older agents made them.
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

// SlotProfile returns the profile to which a gateway's slot belongs. ok is false if the slot isn't a gateway's, or the profile's
// name is invalid.
func SlotProfile(slot string) (profile string, ok bool) {
	profile, ok = strings.CutPrefix(slot, slotPrefix)
	if !ok || ValidServiceName(profile) != nil {
		return "", false
	}
	return profile, true
}

func nameError(name, reason string) error {
	if len(name) > maxServiceName+1 { // the name comes from outside and can have any length
		name = name[:maxServiceName+1]
	}
	return fmt.Errorf("%w %q: %s", ErrName, name, reason)
}

// Compare is the order of profiles in all lists: the default profile, then by bytes.
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
