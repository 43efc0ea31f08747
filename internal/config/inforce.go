package config

import (
	"reflect"
	"slices"
	"strings"
	"sync"
)

// inForce are the keys of a service that [Config.InForce] lists, and what is below them.
var inForce = []string{
	"user", "nice", "ionice", "oom_score", "cpu_affinity", "umask", "limits", "no_new_privs", "memory", "restart", "restart_on", "stop", "needs", "notify", "watchdog",
}

// InForceService lists what is settled for a service about its user, its limits, its end and its order, as far as that differs from the built-in
// defaults. The keys are those below services.NAME. There is none for a service that the configuration does not have.
func (c *Config) InForceService(name string) []Entry {
	s, ok := c.Services[name]
	if !ok {
		return nil
	}
	builtin := newService(c.builtin(), name)
	prefix := "services." + name + "."
	return c.differing(prefix, appendLeaves(nil, prefix, serviceInForce(), &s), appendLeaves(nil, prefix, serviceInForce(), &builtin))
}

// The fields that are listed. They are made once: every status of one service asks for them.
var (
	serviceInForce = sync.OnceValue(func() []field[Service] { return listed(serviceFields()) })
	profileInForce = sync.OnceValue(func() []field[Profile] { return listed(profileFields()) })
)

func listed[T any](fields []field[T]) []field[T] {
	return slices.DeleteFunc(fields, func(f field[T]) bool {
		first, _, _ := strings.Cut(f.path, ".")
		return !slices.Contains(inForce, first)
	})
}

// InForceProfile is [Config.InForceService] for the gateway of a profile.
func (c *Config) InForceProfile(name string) []Entry {
	builtin, own := newProfile(c.builtin()), c.ProfileOf(name)
	if own.Needs == nil {
		own.Needs, own.RestartOn = []Need{}, []string{}
	}
	prefix := "profiles." + name + "."
	entries := c.differing(prefix, appendLeaves(nil, prefix, profileInForce(), &own), appendLeaves(nil, prefix, profileInForce(), &builtin))
	if c.Agent.User != c.builtin().Agent.User {
		entries = slices.Insert(entries, 0, Entry{Key: "user", Value: c.Agent.User, Origin: c.origins["agent.user"].String()})
	}
	return entries
}

// builtin are the defaults that c was made from.
func (c *Config) builtin() *Config {
	if c.plain {
		return plainDefaults()
	}
	return defaults()
}

func (c *Config) differing(prefix string, all, builtin []leaf) (entries []Entry) {
	for _, l := range all {
		same := func(o leaf) bool { return o.key == l.key && reflect.DeepEqual(o.value, l.value) }
		if !slices.ContainsFunc(builtin, same) {
			entries = append(entries, Entry{Key: strings.TrimPrefix(l.key, prefix), Value: l.shown(), Origin: c.originOf(l).String()})
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return entries
}
