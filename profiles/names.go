package profiles

import (
	"errors"
	"fmt"
	"strings"
)

// Default is the name of the root profile, whose home is the root of the volume. This profile always exists: no command creates,
// deletes or renames it.
const Default = "default"

// slotPrefix is the prefix of every gateway's slot name. A slot is a service directory that the supervisor provides for a
// gateway.
const slotPrefix = "gateway-"

// maxServiceName is the maximum length of a profile name for which a gateway can have a service slot.
const maxServiceName = 251

var (
	// ErrName means that a profile name is invalid. The returned error wraps it and says why.
	ErrName = errors.New("invalid profile name")
	// ErrNotExist means that a profile does not exist. The returned error wraps it.
	ErrNotExist = errors.New("no such profile")
)

// Normalize returns s in lower case and without white space around it: " Default" becomes "default". It doesn't validate the
// name. It does no I/O (contract, section 4).
func Normalize(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// ValidServiceName checks by the rule of the service layer whether a profile with this name can have a gateway. A name has 1 to
// 251 characters of a-z, 0-9, "_" and "-", and begins with a letter or a digit. The error wraps [ErrName] and says which rule is
// broken. The function does no I/O (contract, section 4).
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

// SlotName returns the name of the service slot of a profile's gateway: "gateway-" followed by the profile's name.
func SlotName(profile string) string { return slotPrefix + profile }

// SlotProfile is the inverse of [SlotName]: it returns the profile to which a gateway's slot belongs. ok is false if slot is not
// the slot of a gateway, or contains an invalid profile name.
func SlotProfile(slot string) (profile string, ok bool) {
	profile, ok = strings.CutPrefix(slot, slotPrefix)
	if !ok || ValidServiceName(profile) != nil {
		return "", false
	}
	return profile, true
}

func nameError(name, reason string) error {
	if len(name) > maxServiceName+1 { // the name comes from outside and can have any length, so quote only its beginning
		name = name[:maxServiceName+1]
	}
	return fmt.Errorf("%w %q: %s", ErrName, name, reason)
}

// Compare orders profile names for all lists: first the default profile, then by byte order.
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
