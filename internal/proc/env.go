package proc

import (
	"maps"
	"slices"
	"strings"
)

// SetEnv returns a copy of an environment in which the given variables are set. It appends new variables sorted by name.
func SetEnv(env []string, set map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := set[name]
		return replaced
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		out = append(out, name+"="+set[name])
	}
	return out
}

// Getenv returns the value of a variable in an environment, "" for none. Of several definitions it uses the last one.
func Getenv(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}
