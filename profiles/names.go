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

const (
	maxName        = 64  // limit of the agent's command line
	maxServiceName = 251 // room after slotPrefix in a file name
)

var (
	// ErrName is the cause in errors about names that no profile can have.
	ErrName = errors.New("invalid profile name")
	// ErrExists is the cause in errors about a profile that exists already.
	ErrExists = errors.New("the profile exists already")
	// ErrNotExist is the cause in errors about a missing profile.
	ErrNotExist = errors.New("no such profile")
)

// Normalize returns s in lower case and without white space around it: " Default" becomes "default". It doesn't validate the
// name. It is pure (contract, section 4).
func Normalize(s string) string {
	return strings.ToLower(strings.TrimSpace(s))
}

// ValidName checks a name by the rule of the agent's command line. The error wraps [ErrName] and says which rule is broken. A
// name has 1 to 64 characters of a-z, 0-9, "_" and "-", begins with a letter or a digit, and is no reserved word. "default" is
// valid, because it names the root profile. The name must be normalized already. ValidName is pure (contract, section 4).
func ValidName(name string) error {
	if err := checkName(name, maxName); err != nil {
		return err
	}
	if reserved(name) {
		return nameError(name, "the name is reserved")
	}
	return nil
}

// ValidServiceName checks whether the directory of that name can have a gateway, by the rule of the service layer. It is the
// same rule as in [ValidName], but with up to 251 characters and without reserved words. The error wraps [ErrName]. The function
// is pure (contract, section 4).
func ValidServiceName(name string) error {
	return checkName(name, maxServiceName)
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

func reserved(name string) bool {
	switch name {
	case "hermes", "test", "tmp", "root", "sudo":
		return true
	}
	return false
}

func checkName(name string, limit int) error {
	if name == "" {
		return nameError(name, "it is empty")
	}
	if len(name) > limit {
		return nameError(name, fmt.Sprintf("it is longer than %d characters", limit))
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
