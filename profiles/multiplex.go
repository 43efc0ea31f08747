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

// Topology describes which gateway serves which profiles: each profile has its own gateway, or the default profile's gateway
// serves several.
type Topology struct {
	// Multiplexed is true if the gateway of the default profile serves other profiles too.
	Multiplexed bool
	// Set is the mode that an operator has set with `hinit topology`: [PerProfile], [Multiplex], or "". If it is "", the
	// environment and the agent's configuration decide.
	Set string
	// From is the name of the file or variable that decided the mode, or "" for the built-in default.
	From string

	allowed []string // sorted; an agent decides how many there are
	limited bool     // the multiplexing gateway serves only the profiles in allowed
}

// Vars returns the environment variables that tell a gateway the operator's choice, see Set: one gateway for each profile, or one
// for all. If the operator has chosen nothing, it returns nil.
func (t Topology) Vars() map[string]string {
	switch t.Set {
	case PerProfile:
		return map[string]string{envMultiplex: "0"}
	case Multiplex:
		return map[string]string{envMultiplex: "1"}
	}
	return nil
}

// The modes that an operator can set.
const (
	PerProfile = "per-profile" // each profile has its own gateway
	Multiplex  = "multiplexed" // the gateway of the default profile serves all
	Auto       = "auto"        // the environment and the agent's configuration decide
)

// Serves reports whether the gateway of the default profile is expected to serve a profile.
func (t Topology) Serves(profile string) bool {
	_, listed := slices.BinarySearch(t.allowed, profile)
	return t.Multiplexed && (!t.limited || profile == Default || listed)
}

// topologyFile records the mode that an operator has set. It belongs to the agent's user, like the configuration that it
// overrides.
const topologyFile = ".hinit-topology"

// Topology returns how the default profile's gateway would serve the profiles if it started now. The first of these that is set
// decides: the operator's mode, the variable GATEWAY_MULTIPLEX_PROFILES, the agent's configuration. A blank or unknown value
// counts as unset. If the parameter as is not empty, it replaces the operator's recorded mode. Topology reads the disk. After an
// error, the result is computed without the file that can't be read.
func (s *Store) Topology(getenv func(string) string, as string) (Topology, error) {
	return fromHome(s, Default, func(d *fsutil.Dir, home string) (Topology, error) { return topology(d, home, getenv, as) })
}

func topology(d *fsutil.Dir, home string, getenv func(string) string, as string) (Topology, error) {
	text, err := d.ReadFile(filepath.Join(home, configFile), maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	t, word := agentTopology(text)
	if on, known := parseSwitch(word); known {
		t.Multiplexed, t.From = on, configFile
	}
	if on, known := parseSwitch(getenv(envMultiplex)); known {
		t.Multiplexed, t.From = on, envMultiplex
	}
	if as == "" {
		asked, _ := d.ReadFile(filepath.Join(home, topologyFile), maxMarker)
		as = strings.TrimSpace(string(asked))
	}
	if as == PerProfile || as == Multiplex {
		t.Multiplexed, t.From, t.Set = as == Multiplex, topologyFile, as
	}
	return t, err
}

// SetTopology records the mode that the operator wants: [PerProfile], [Multiplex] or [Auto]. It reads and writes the disk.
func (s *Store) SetTopology(mode string) error {
	defer s.lock(Default)()
	return s.WithHome(Default, func(d *fsutil.Dir, home string) error {
		file := filepath.Join(home, topologyFile)
		if mode == Auto {
			return removeIfExists(d, file)
		}
		return d.Replace(file, []byte(mode+"\n"), fsutil.ReplaceOptions{Mode: 0o644})
	})
}

const multiplexKey = "multiplex_profiles"

// agentTopology returns what the agent's config.yaml sets: the allowed profiles, and the word for a multiplexed gateway. The agent
// writes the text and PID 1 reads it, so a text at which the YAML library panics sets nothing. The library decodes no value, because
// it decodes a binary value again for each alias.
func agentTopology(text []byte) (t Topology, word string) {
	defer func() {
		if recover() != nil {
			t, word = Topology{}, ""
		}
	}()
	config := parseAgentConfig(text)
	list := agentSetting(config, "multiplex_profile_allowlist")
	t.limited = list.Kind != 0 && list.Tag != "!!null"
	if list.Kind == yaml.SequenceNode { // a value that isn't a list allows no profile
		for _, item := range list.Content {
			t.allowed = append(t.allowed, cmp.Or(item.Alias, item).Value)
		}
		slices.Sort(t.allowed)
	}
	return t, agentSetting(config, multiplexKey).Value // a list or a mapping is an unknown word
}

// parseAgentConfig parses the agent's config.yaml. It returns nil if the text has none of the keys of agentTopology, which all
// begin with multiplex_profile. It also returns nil if the text isn't YAML, or has too many values for the memory of PID 1.
func parseAgentConfig(text []byte) *yaml.Node {
	var document yaml.Node
	if !bytes.Contains(text, []byte("multiplex_profile")) || yamltext.LineOfTooManyValues(text) > 0 ||
		yaml.Unmarshal(text, &document) != nil || len(document.Content) == 0 {
		return nil
	}
	return document.Content[0]
}

// agentSetting returns the value of a key in the agent's configuration. Its Kind is 0 if the key is missing. The key can be at the
// top level or below "gateway"; the top level wins.
func agentSetting(config *yaml.Node, key string) *yaml.Node {
	return cmp.Or(valueOf(config, key), valueOf(valueOf(config, "gateway"), key), new(yaml.Node))
}

// valueOf returns the value of a key in a mapping, or nil. It follows an alias. If the key is repeated, the last value counts, as in
// Python.
func valueOf(mapping *yaml.Node, key string) (value *yaml.Node) {
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

// parseSwitch parses a boolean by the agent's rules, ignoring case. The result known is false if s is blank or an unknown word.
func parseSwitch(s string) (on, known bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "1", "true", "yes", "on":
		return true, true
	case "0", "false", "no", "off":
		return false, true
	}
	return false, false
}
