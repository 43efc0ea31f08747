package profiles

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"hinit/internal/fsutil"
)

// Multiplexed reports whether the default profile's gateway, if it were started now, would serve all profiles. It reads the disk.
func (s *Store) Multiplexed(getenv func(string) string) (on bool, err error) {
	err = s.in(Default, func(d *fsutil.Dir, home string) error {
		on, err = multiplexes(d, home, getenv)
		return err
	})
	return on, err
}

// multiplexes reads the flag from the agent's configuration, or from the environment where that can't be read.
func multiplexes(d *fsutil.Dir, home string, getenv func(string) string) (bool, error) {
	config, err := d.ReadFile(filepath.Join(home, configFile), maxConfig)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return truthy(getenv(envMultiplex)), err
	}
	on, _ := multiplexed(string(config))
	return on, nil
}

// multiplexed finds the switch multiplex_profiles of the agent's config.yaml, at top level or beneath "gateway"; top level wins. ok
// is false when the file doesn't have it (contract, section 5.2).
//
// It is a line scanner for that one key and no YAML reader, because PID 1 must boot whatever the file holds. It knows block
// mappings, comments, quotes, a flow mapping on the line of "gateway", and JSON. In anything else the key isn't there.
func multiplexed(config string) (on, ok bool) {
	config = strings.TrimPrefix(config, "\ufeff")
	if strings.HasPrefix(strings.TrimSpace(config), "{") {
		return multiplexedJSON(config)
	}
	var top, nested *bool
	inGateway, indent := false, 0
	for line := range strings.Lines(config) {
		line = strings.TrimRight(line, " \t\r\n")
		body := strings.TrimLeft(line, " ")
		if body == "" || body[0] == '#' {
			continue
		}
		depth := len(line) - len(body)
		if depth == 0 && (line == "..." || line == "---" && (top != nil || nested != nil)) {
			break // the next document
		}
		key, value, isPair := yamlPair(body)
		switch {
		case depth == 0:
			inGateway, indent = isPair && key == "gateway", 0
			switch {
			case isPair && key == multiplexKey:
				top = new(truthy(value))
			case inGateway:
				nested = flowSwitch(value)
			}
		case inGateway:
			if indent == 0 {
				indent = depth // that of the first child is that of all
			}
			if depth == indent && isPair && key == multiplexKey {
				nested = new(truthy(value))
			}
		}
	}
	switch {
	case top != nil:
		return *top, true
	case nested != nil:
		return *nested, true
	}
	return false, false
}

const multiplexKey = "multiplex_profiles"

func multiplexedJSON(config string) (on, ok bool) {
	var doc map[string]any
	if json.Unmarshal([]byte(config), &doc) != nil {
		return false, false
	}
	gateway, _ := doc["gateway"].(map[string]any)
	for _, level := range []map[string]any{doc, gateway} {
		switch v := level[multiplexKey].(type) {
		case bool:
			return v, true
		case string:
			return truthy(v), true
		case float64:
			return v != 0, true
		}
	}
	return false, false
}

// flowSwitch finds the key in "{a: b, multiplex_profiles: true}".
func flowSwitch(value string) *bool {
	body, ok := strings.CutPrefix(value, "{")
	if !ok {
		return nil
	}
	body, ok = strings.CutSuffix(body, "}")
	if !ok || strings.ContainsAny(body, "{[") {
		return nil
	}
	for pair := range strings.SplitSeq(body, ",") {
		if key, value, ok := yamlPair(strings.TrimSpace(pair)); ok && key == multiplexKey {
			return new(truthy(value))
		}
	}
	return nil
}

// yamlPair splits "key: value # comment", without quotes around either.
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

// truthy is the agent's reading of a switch: 1, true, yes or on in any case.
func truthy(s string) bool { return truthy3(s) || strings.EqualFold(strings.TrimSpace(s), "on") }

// truthy3 is the stricter one: 1, true or yes in any case.
func truthy3(s string) bool {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "1", "true", "yes":
		return true
	}
	return false
}
