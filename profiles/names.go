package profiles

import (
	"errors"
	"fmt"
	"strings"
)

// Default is the name of the root profile, whose home is the root of the volume. This profile always exists: no command creates,
// deletes or renames it.
const Default = "default"

// slotPrefix begins the name of a gateway's service slot.
const slotPrefix = "gateway-"

// maxServiceName is the room after slotPrefix in a file name.
const maxServiceName = 251

var (
	// ErrName is the cause in errors about names that no profile can have.
	ErrName = errors.New("invalid profile name")
	// ErrNotExist is the cause in errors about a missing profile.
	ErrNotExist = errors.New("no such profile")
)

// Normalize returns s in lower case and without white space around it: " Default" becomes "default". It doesn't validate the
// name. It is pure (contract, section 4).
func Normalize(s string) string {
	return strings.ToLower(strings.TrimSpace(s))
}

// ValidServiceName checks whether the directory of that name can have a gateway, by the rule of the service layer. A name has 1 to
// 251 characters of a-z, 0-9, "_" and "-", and begins with a letter or a digit. The error wraps [ErrName] and says which rule is
// broken. The function is pure (contract, section 4).
func ValidServiceName(name string) error {
	if name == "" {
		return nameError(name, "it is empty")
	}
	if len(name) > maxServiceName {
		return nameError(name, fmt.Sprintf("it is longer than %d characters", maxServiceName))
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if letter || i > 0 && (c == '_' || c == '-') {
			continue
		}
		if i == 0 {
			return nameError(name, "it must start with a lower-case letter or a digit")
		}
		return nameError(name, "only a-z, 0-9, \"_\" and \"-\" are allowed")
	}
	return nil
}

// SlotName returns the name of the service slot of a profile's gateway: "gateway-" and the profile.
func SlotName(profile string) string { return slotPrefix + profile }

// SlotProfile is the inverse of [SlotName]: it returns the profile of a gateway's slot. ok is false if slot belongs to no
// gateway, or names no possible profile.
func SlotProfile(slot string) (profile string, ok bool) {
	profile, ok = strings.CutPrefix(slot, slotPrefix)
	if !ok || ValidServiceName(profile) != nil {
		return "", false
	}
	return profile, true
}

func nameError(name, reason string) error {
	if len(name) > maxServiceName+1 { // a name from outside can have any length, so quote only its beginning
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
