package gateway

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/examples/agent/internal/home"
)

// multiplexed reports whether the default profile's gateway serves all profiles. The environment has priority over the
// default profile's config.yaml. An empty or unknown word is ignored.
func (g *gateway) multiplexed() bool {
	if on, known := parseSwitch(g.Getenv("GATEWAY_MULTIPLEX_PROFILES")); known {
		return on
	}
	on, _ := parseSwitch(g.configValue("multiplex_profiles"))
	return on
}

// servedProfiles returns the profiles that a multiplexing gateway serves: the default profile and the profiles in the allowlist.
// Without an allowlist it serves all profiles.
func (g *gateway) servedProfiles() []string {
	names, err := g.Home.List()
	g.warnOnError(err)
	list := strings.TrimSpace(g.configValue("multiplex_profile_allowlist"))
	if list == "" {
		return names
	}
	allowed := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune("[], ", r) })
	return slices.DeleteFunc(names, func(name string) bool { return name != home.DefaultProfile && !slices.Contains(allowed, name) })
}

// configValue returns the text after a key in the default profile's config.yaml. The key may be on any level, but its value must
// be on the same line.
func (g *gateway) configValue(key string) string {
	text, err := os.ReadFile(filepath.Join(g.Home.Root, "config.yaml"))
	if !os.IsNotExist(err) {
		g.warnOnError(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), key+":"); found {
			return value
		}
	}
	return ""
}

func parseSwitch(text string) (on, known bool) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "true", "yes", "on":
		return true, true
	case "0", "false", "no", "off":
		return false, true
	}
	return false, false
}
