package config

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"hinit/client"
	"hinit/internal/redact"
)

// Effective lists all values in force, sorted by key, for `hinit config`. Secrets are masked: in the values of environment
// variables and headers, in the addresses of webhooks and in URLs (package redact).
func (c *Config) Effective() []client.ConfigEntry {
	leaves := c.settingValues()
	entries := make([]client.ConfigEntry, len(leaves))
	for i, l := range leaves {
		entries[i] = client.ConfigEntry{Key: l.key, Value: l.masked(), Origin: c.originOf(l).String()}
	}
	return entries
}

// IsSet reports whether hinit.yaml or an environment variable sets the key itself. An inherited value doesn't count.
func (c *Config) IsSet(key string) bool {
	_, set := c.origins[key]
	return set
}

// Diff returns the keys whose values differ between two configurations, sorted. It compares the secrets themselves, not their
// masked forms.
func Diff(from, to *Config) []string {
	before := make(map[string]any)
	for _, l := range from.settingValues() {
		before[l.key] = l.value
	}
	var changed []string
	for _, l := range to.settingValues() {
		if value, was := before[l.key]; !was || !reflect.DeepEqual(value, l.value) {
			changed = append(changed, l.key)
		}
		delete(before, l.key)
	}
	return slices.Sorted(slices.Values(slices.AppendSeq(changed, maps.Keys(before))))
}

// settingValue is the value of one key in a configuration.
type settingValue struct {
	key      string
	value    any
	variable string // name of the environment variable or header with this value, if the value may be secret
	inherits string // key that provides the value while this key is not set
}

func (l settingValue) masked() any {
	value, ok := l.value.(string)
	switch {
	case !ok:
		return l.value
	case l.variable == "" && strings.HasSuffix(l.key, ".webhook"):
		return redact.HideAddress(value)
	}
	return redact.HideValue(l.variable, value) // HideValue hides the password of a URL even if the variable has no secret name
}

// settingValues returns all values of c, sorted by key.
func (c *Config) settingValues() []settingValue {
	leaves := appendSettings(nil, "", Keys[Config](), c)
	leaves = appendNamedSettings(leaves, "logs.profiles.", c.Logs.Profiles)
	leaves = appendNamedSettings(leaves, "services.", c.Services)
	leaves = appendNamedSettings(leaves, "profiles.", c.Profiles.Overrides)
	leaves = appendNamedSettings(leaves, "runs.", c.Runs)
	slices.SortFunc(leaves, func(a, b settingValue) int { return cmp.Compare(a.key, b.key) })
	return leaves
}

func appendNamedSettings[T any](leaves []settingValue, base string, of map[string]T) []settingValue {
	for name, value := range of {
		leaves = appendSettings(leaves, base+name+".", Keys[T](), &value)
	}
	return leaves
}

// appendSettings appends the value of each key in fields to leaves. base comes before each key. root points to the struct with
// the values. Lists and mappings contribute one value for each element.
func appendSettings(leaves []settingValue, base string, fields []Key, root any) []settingValue {
	for _, k := range fields {
		if k.Alias != "" {
			continue
		}
		key := base + k.Path
		switch at := k.ValuePointer(root).(type) {
		case *map[string]string:
			for name, value := range *at {
				leaves = append(leaves, settingValue{key: key + "." + name, value: value, variable: name})
			}
		case *[]Hook:
			for i := range *at {
				leaves = appendSettings(leaves, key+"."+strconv.Itoa(i)+".", Keys[Hook](), &(*at)[i])
			}
		case *[]Check:
			for i := range *at {
				c := &(*at)[i]
				leaves = appendSettings(leaves, key+"."+c.Name+".", checkKeys(c.Type), c)
			}
		case *Actions:
			for event, list := range *at {
				for i := range list {
					leaves = appendSettings(leaves, key+"."+event+"."+strconv.Itoa(i)+".", list[i].validKeys(), &list[i])
				}
			}
		case *map[string]ResourceLimit:
			for name, n := range *at {
				leaves = append(leaves, settingValue{key: key + "." + name, value: jsonLimit(n)})
			}
		default:
			leaves = append(leaves, settingValue{key: key, value: JSONValue(at), inherits: k.Inherits})
		}
	}
	return leaves
}

// originOf returns the place where a value was set. An inherited value has the origin of its inherited key.
func (c *Config) originOf(l settingValue) origin {
	if o, ok := c.origins[l.key]; ok {
		return o
	}
	return c.origins[l.inherits]
}

// nonDefaultKeys lists the first parts of all keys that [Config.NonDefaultSettings] may return.
var nonDefaultKeys = []string{
	"user", "nice", "ionice", "oom_score", "cpu_affinity", "umask", "limits", "no_new_privs", "memory", "cpu", "pids", "priority", "restart", "restart_on", "stop", "needs", "notify", "watchdog",
	"group", "reload_signal", "stop_command", "isolation",
}

// NonDefaultSettings lists the settings of a service, or of a profile's gateway, that differ from the built-in defaults. It covers
// only settings that explain how the service runs: user, limits, start, restart and stop. The keys are relative to services.NAME or
// profiles.NAME. For an unknown service the list is empty.
func (c *Config) NonDefaultSettings(service string) (entries []client.ConfigEntry) {
	builtin := Defaults()
	if c.servicesOnly {
		builtin = servicesOnlyDefaults()
	}
	if s, ok := c.Services[service]; ok {
		return differingEntries(c, "services."+service+".", &s, new(NewService(builtin, service)))
	}
	profile, ok := strings.CutPrefix(service, gatewayPrefix)
	if !ok {
		return nil
	}
	own, was := c.ProfileOf(profile), NewProfile(builtin)
	if c.Agent.User != builtin.Agent.User {
		entries = []client.ConfigEntry{{Key: "user", Value: c.Agent.User, Origin: c.origins["agent.user"].String()}}
	}
	return append(entries, differingEntries(c, "profiles."+profile+".", &own, &was)...)
}

// differingEntries returns the settings in own that differ from builtin and whose keys begin with one of nonDefaultKeys, sorted
// by key. prefix is the full path of own, such as "services.web.".
func differingEntries[T any](c *Config, prefix string, own, builtin *T) (entries []client.ConfigEntry) {
	defaults := appendSettings(nil, prefix, Keys[T](), builtin)
	for _, l := range appendSettings(nil, prefix, Keys[T](), own) {
		key := strings.TrimPrefix(l.key, prefix)
		first, _, _ := strings.Cut(key, ".")
		same := func(o settingValue) bool { return o.key == l.key && reflect.DeepEqual(o.value, l.value) }
		if slices.Contains(nonDefaultKeys, first) && !slices.ContainsFunc(defaults, same) {
			entries = append(entries, client.ConfigEntry{Key: key, Value: l.masked(), Origin: c.originOf(l).String()})
		}
	}
	slices.SortFunc(entries, func(a, b client.ConfigEntry) int { return strings.Compare(a.Key, b.Key) })
	return entries
}
