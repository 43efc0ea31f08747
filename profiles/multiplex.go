package profiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/fsutil"
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

	allowed []string
	limited bool // the multiplexing gateway serves only the profiles in allowed
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
	return t.Multiplexed && (!t.limited || profile == Default || slices.Contains(t.allowed, profile))
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

func topology(d *fsutil.Dir, home string, getenv func(string) string, as string) (t Topology, err error) {
	text, err := d.ReadFile(filepath.Join(home, configFile), maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	config := string(text)
	if list := agentSetting(config, allowKey); list.found && !list.hasNoValue() {
		t.limited, t.allowed = true, list.items
	}
	if on, known := parseSwitch(agentSetting(config, multiplexKey).word); known {
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
		if mode != Auto {
			return d.Replace(file, []byte(mode+"\n"), fsutil.ReplaceOptions{Mode: 0o644})
		}
		if err := d.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

const (
	multiplexKey = "multiplex_profiles"
	allowKey     = "multiplex_profile_allowlist"
)

// setting is the value of a key in the agent's configuration: either a word or a list.
type setting struct {
	found  bool
	isList bool
	word   string
	items  []string
}

// hasNoValue reports whether the configuration contains the key, but with an empty value, null or ~.
func (v setting) hasNoValue() bool {
	return !v.isList && slices.Contains([]string{"", "null", "~"}, strings.ToLower(v.word))
}

// agentSetting returns the value of a key in the agent's configuration. The parameter config is the text of config.yaml, and
// wanted is the key. The key can be at the top level or below "gateway"; the top level wins.
//
// agentSetting scans lines and is not a YAML parser, because PID 1 must boot whatever the file contains. It understands block
// mappings and lists, comments, quotes, a flow mapping on the line of "gateway", a flow list, and JSON. In any other syntax it
// doesn't find the key.
func agentSetting(config, wanted string) setting {
	config = strings.TrimPrefix(config, "\ufeff")
	if strings.HasPrefix(strings.TrimSpace(config), "{") {
		return jsonSetting(config, wanted)
	}
	var top, nested setting
	var open *setting // the value to which following "- item" lines belong; nil for none
	inGateway, indent := false, 0
	for line := range strings.Lines(config) {
		line = strings.TrimRight(line, " \t\r\n")
		body := strings.TrimLeft(line, " ")
		if body == "" || body[0] == '#' {
			continue
		}
		if item, isItem := strings.CutPrefix(body, "- "); isItem && open != nil {
			_, item, _ := yamlPair("item: " + item)
			open.isList, open.items = true, append(open.items, item)
			continue
		}
		open = nil
		depth := len(line) - len(body)
		if depth == 0 && (line == "..." || line == "---" && (top.found || nested.found)) {
			break // ignore the later YAML documents in the file
		}
		key, value, isPair := yamlPair(body)
		found := isPair && key == wanted
		switch {
		case depth == 0:
			inGateway, indent = isPair && key == "gateway", 0
			switch {
			case found:
				top = yamlSetting(value)
				open = &top
			case inGateway:
				nested = flowSetting(value, wanted)
			}
		case inGateway:
			indent = cmp.Or(indent, depth) // the first child sets the indent of all children
			if depth == indent && found {
				nested = yamlSetting(value)
				open = &nested
			}
		}
		if open != nil && open.word != "" {
			open = nil
		}
	}
	if top.found {
		return top
	}
	return nested
}

// yamlSetting parses a value that is on the same line as its key.
func yamlSetting(value string) setting {
	body, isList := strings.CutPrefix(value, "[")
	if !isList {
		return setting{found: true, word: value}
	}
	v := setting{found: true, isList: true}
	body, _, _ = strings.Cut(body, "]")
	for item := range strings.SplitSeq(body, ",") {
		if item = unquote(strings.TrimSpace(item)); item != "" {
			v.items = append(v.items, item)
		}
	}
	return v
}

func jsonSetting(config, wanted string) setting {
	var doc map[string]any
	if json.Unmarshal([]byte(config), &doc) != nil {
		return setting{}
	}
	gateway, _ := doc["gateway"].(map[string]any)
	for _, level := range []map[string]any{doc, gateway} {
		value, found := level[wanted]
		if list, isList := value.([]any); isList {
			v := setting{found: true, isList: true}
			for _, item := range list {
				v.items = append(v.items, fmt.Sprint(item))
			}
			return v
		}
		if found && value != nil {
			return setting{found: true, word: fmt.Sprint(value)}
		}
	}
	return setting{}
}

// flowSetting returns the value of one key in a flow mapping. The parameter value is the mapping, such as "{a: b,
// multiplex_profiles: true}", and wanted is the key.
func flowSetting(value, wanted string) setting {
	body, ok := strings.CutPrefix(value, "{")
	if !ok {
		return setting{}
	}
	body, ok = strings.CutSuffix(body, "}")
	if !ok || strings.ContainsAny(body, "{[") {
		return setting{}
	}
	for pair := range strings.SplitSeq(body, ",") {
		if key, value, ok := yamlPair(strings.TrimSpace(pair)); ok && key == wanted {
			return yamlSetting(value)
		}
	}
	return setting{}
}

// yamlPair splits "key: value # comment" and removes quotes around key and value.
func yamlPair(s string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(s, ":")
	if !ok || value != "" && value[0] != ' ' && value[0] != '\t' {
		return "", "", false
	}
	value = strings.TrimSpace(value)
	if i := strings.Index(" "+value, " #"); i >= 0 {
		value = strings.TrimSpace(value[:max(i-1, 0)])
	}
	return unquote(strings.TrimSpace(key)), unquote(value), true
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
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

// isTruthy reports whether s is 1, true or yes, ignoring case. Unlike parseSwitch, it doesn't accept "on".
func isTruthy(s string) bool {
	on, _ := parseSwitch(s)
	return on && !strings.EqualFold(strings.TrimSpace(s), "on")
}
