package profiles

import (
	"errors"
	"fmt"
	"strings"
)

// Default is the name of the root profile. Its home is the root of the volume. It always exists: it can be neither created
// nor deleted nor renamed.
const Default = "default"

// slotPrefix begins the name of a gateway's service slot.
const slotPrefix = "gateway-"

const (
	maxName        = 64  // limit of the agent's command line
	maxServiceName = 251 // room behind slotPrefix in a file name, without a suffix
)

var (
	// ErrName is wrapped by the error about a name that no profile can have.
	ErrName = errors.New("invalid profile name")
	// ErrExists is wrapped by the error about a profile that exists already.
	ErrExists = errors.New("the profile exists already")
	// ErrNotExist is wrapped by the error about a profile that doesn't exist.
	ErrNotExist = errors.New("no such profile")
)

// Normalize returns the name that a person meant by s: without surrounding white space and in lower case, so that
// " Default" is "default". It doesn't validate. Pure (contract, section 4).
func Normalize(s string) string {
	return strings.ToLower(strings.TrimSpace(s))
}

// ValidName tells whether a profile may be called name, by the rule of the agent's command line. A name has 1 to 64 characters of
// a-z, 0-9, "_" and "-". The first is a letter or a digit, and the name is no reserved word. "default" is valid: it names the
// root profile. The error wraps [ErrName] and tells which rule is broken. The name has to be normalised already. Pure (contract,
// section 4).
func ValidName(name string) error {
	if err := checkName(name, maxName); err != nil {
		return err
	}
	if reserved(name) {
		return nameError(name, "the name is reserved")
	}
	return nil
}

// ValidServiceName tells whether a directory called name can have a gateway, by the rule of the service layer. That is the rule
// of [ValidName] with up to 251 characters and without reserved words. The error wraps [ErrName]. Pure (contract, section 4).
func ValidServiceName(name string) error {
	return checkName(name, maxServiceName)
}

// SlotName returns the name of the service slot of profile's gateway: "gateway-" and the profile. Pure.
func SlotName(profile string) string { return slotPrefix + profile }

// SlotProfile is the inverse of [SlotName]: the profile whose gateway's slot is called slot. It reports false when slot is
// not a gateway's slot or names no possible profile. Pure.
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
	if len(name) > maxServiceName+1 { // a name from outside can have any length: don't repeat all of it
		name = name[:maxServiceName+1]
	}
	return fmt.Errorf("%w %q: %s", ErrName, name, reason)
}

// Compare orders the names of profiles as they are shown everywhere: the default one first, the others as they are sorted.
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
