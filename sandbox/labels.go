package sandbox

import (
	"cmp"
	"strings"
)

// The labels of a sandbox's container. The first three are the agent's own; only the exact values make a container a sandbox.
const (
	LabelAgent   = "hermes-agent"   // "1"
	LabelTask    = "hermes-task-id" // sanitised
	LabelProfile = "hermes-profile" // sanitised

	LabelVolume = "hinit-volume" // identity of the volume that it belongs to; others leave it alone
	LabelSource = "hinit-source" // of a volume: the directory in whose place it stands
	LabelClient = "hinit-client" // the process that wanted a container of its own by docker run, and did not look for one before
)

// VolumePrefix begins the name of every private volume of a sandbox.
const VolumePrefix = "hinit-private-"

// Labels returns the three labels of a key.
func Labels(key Key) map[string]string {
	return map[string]string{LabelAgent: "1", LabelTask: Sanitise(cmp.Or(key.Task, "default")), LabelProfile: Sanitise(cmp.Or(key.Profile, "default"))}
}

// Sanitise makes a label value of a name. It loses what it replaces, so the value must not be taken for the name.
func Sanitise(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return '_'
	}, name)
	return cmp.Or(clean[:min(len(clean), 63)], "unknown")
}
