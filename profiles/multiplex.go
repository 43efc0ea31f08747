package profiles

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hinit/internal/fsutil"
	"hinit/internal/yamltext"
)

// Topology says which gateway serves which profiles: either each profile has its own gateway, or the gateway of the default
// profile is multiplexed and serves several profiles.
type Topology struct {
	// Multiplexed is true if the gateway of the default profile serves other profiles too.
	Multiplexed bool
	// SetByOperator is the mode that an operator has set with `hinit topology`: [PerProfile] or [Multiplex]. If it is "", the
	// environment and the agent's configuration decide.
	SetByOperator string `reexec:"Set"`
	// DecidedBy names the file or variable that determines the topology; "" means the built-in default.
	DecidedBy string `reexec:"From"`

	allowed           []string // Names of profiles, sorted; the agent decides how many exist.
	servesOnlyAllowed bool     `reexec:"limited"` // Whether a multiplexed gateway serves only the profiles in allowed.
}

// Vars returns the environment variables that pass the mode in SetByOperator to a gateway. If no operator has set a mode, it
// returns nil.
func (t Topology) Vars() map[string]string {
	switch t.SetByOperator {
	case PerProfile:
		return map[string]string{multiplexVar: "0"}
	case Multiplex:
		return map[string]string{multiplexVar: "1"}
	}
	return nil
}

// Modes that an operator can set.
const (
	PerProfile   = "per-profile" // Each profile has its own gateway.
	Multiplex    = "multiplexed" // The gateway of the default profile serves all profiles.
	AutoTopology = "auto"        // The environment and the agent's configuration decide.
)

// Serves reports whether the gateway of the default profile should serve a profile.
func (t Topology) Serves(profile string) bool {
	_, listed := slices.BinarySearch(t.allowed, profile)
	return t.Multiplexed && (!t.servesOnlyAllowed || profile == Default || listed)
}

// topologyFile is the file on the volume with the mode that an operator has set. It belongs to the agent's user, as does the
// configuration that it overrides.
const topologyFile = ".hinit-topology"

// Topology returns which profiles the default profile's gateway would serve if it started now. The first of these sources
// decides: as, or without it the mode that an operator has set; the variable GATEWAY_MULTIPLEX_PROFILES; the agent's
// configuration. An empty or unknown value is ignored. Topology reads the disk. After an error, the result comes from the sources
// that could be read.
func (s *Store) Topology(getenv func(string) string, as string) (Topology, error) {
	return readHome(s, Default, func(d *fsutil.Dir, home string) (Topology, error) { return topology(d, home, getenv, as) })
}

// topology is [Store.Topology] for an open volume. It determines the mode from three sources: the agent's configuration file has
// the lowest precedence, then comes the environment, then the mode that an operator has set. If as isn't "", it replaces the
// operator's mode.
func topology(d *fsutil.Dir, home string, getenv func(string) string, as string) (Topology, error) {
	text, err := d.ReadFile(filepath.Join(home, configFile), maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	t, word := agentTopology(text)
	if on, known := parseSwitch(word); known {
		t.Multiplexed, t.DecidedBy = on, configFile
	}
	if on, known := parseSwitch(getenv(multiplexVar)); known {
		t.Multiplexed, t.DecidedBy = on, multiplexVar
	}
	if as == "" {
		requested, _ := d.ReadFile(filepath.Join(home, topologyFile), maxMarker)
		as = strings.TrimSpace(string(requested))
	}
	if as == PerProfile || as == Multiplex {
		t.Multiplexed, t.DecidedBy, t.SetByOperator = as == Multiplex, topologyFile, as
	}
	return t, err
}

// SetTopology stores the mode that an operator sets: [PerProfile] or [Multiplex]. [AutoTopology] removes the stored mode. It
// blocks on the disk.
func (s *Store) SetTopology(mode string) error {
	defer s.lock(Default)()
	return s.WithHome(Default, func(d *fsutil.Dir, home string) error {
		file := filepath.Join(home, topologyFile)
		if mode == AutoTopology {
			return removeIfExists(d, file)
		}
		return d.Replace(file, []byte(mode+"\n"), fsutil.ReplaceOptions{Mode: 0o644})
	})
}

const multiplexKey = "multiplex_profiles"

// agentTopology returns what the agent's config.yaml sets: the allowed profiles, and as word the value that switches
// multiplexing. PID 1 reads this text, which the agent controls. So a text at which the YAML library panics sets nothing. The
// library must decode no value, because it would decode a binary value again for each alias.
func agentTopology(text []byte) (t Topology, word string) {
	defer func() {
		if recover() != nil {
			t, word = Topology{}, ""
		}
	}()
	config := parseAgentConfig(text)
	list := agentSetting(config, "multiplex_profile_allowlist")
	t.servesOnlyAllowed = list.Kind != 0 && list.Tag != "!!null"
	if list.Kind == yaml.SequenceNode { // Any value but a list allows no profile.
		for _, item := range list.Content {
			t.allowed = append(t.allowed, cmp.Or(item.Alias, item).Value)
		}
		slices.Sort(t.allowed)
	}
	return t, agentSetting(config, multiplexKey).Value // A list or a mapping has an empty Value, which is an unknown word.
}

// parseAgentConfig parses the agent's config.yaml. If the text isn't YAML or has too many values, it returns nil. It also returns
// nil for a text without the word multiplex_profile, with which the keys of agentTopology begin: this saves time in PID 1.
func parseAgentConfig(text []byte) *yaml.Node {
	var document yaml.Node
	if !bytes.Contains(text, []byte("multiplex_profile")) || yamltext.LineOfTooManyValues(text) > 0 ||
		yaml.Unmarshal(text, &document) != nil || len(document.Content) == 0 {
		return nil
	}
	return document.Content[0]
}

// agentSetting returns the value of a key in the agent's configuration: at the top level, or else below "gateway". If the key is
// missing, the Kind of the result is 0.
func agentSetting(config *yaml.Node, key string) *yaml.Node {
	return cmp.Or(mappingValue(config, key), mappingValue(mappingValue(config, "gateway"), key), new(yaml.Node))
}

// mappingValue returns the value of a key in a mapping, or nil. If the value is an alias, it returns the node to which the alias
// refers. If a key is repeated, the last value counts, as in Python, the language of the agent.
func mappingValue(mapping *yaml.Node, key string) (value *yaml.Node) {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil
	}
	for pair := range slices.Chunk(mapping.Content, 2) {
		if pair[0].Value == key {
			value = cmp.Or(pair[1].Alias, pair[1])
		}
	}
	return value
}

// parseSwitch parses a boolean as the agent does, ignoring case. If s is empty or an unknown word, known is false.
func parseSwitch(s string) (on, known bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "1", "true", "yes", "on":
		return true, true
	case "0", "false", "no", "off":
		return false, true
	}
	return false, false
}
