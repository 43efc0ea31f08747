package shim

import "strings"

// truthy reports whether a value means yes, as the contract defines it: 1, true or yes, in upper or lower case. Any other value
// means no, so a typo makes the shim drop root.
func truthy(value string) bool {
	return value == "1" || strings.EqualFold(value, "true") || strings.EqualFold(value, "yes")
}

// lookupEnv returns the value of the variable key in env, or "". If key occurs several times, the first value counts, as in
// getenv(3).
func lookupEnv(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// withEnv returns a copy of the environment env in which the variable key has the given value. The other variables and their
// order do not change.
func withEnv(env []string, key, value string) []string {
	out := make([]string, 0, len(env)+1)
	set := false
	for _, kv := range env {
		if strings.HasPrefix(kv, key+"=") {
			if set {
				continue
			}
			kv, set = key+"="+value, true
		}
		out = append(out, kv)
	}
	if !set {
		out = append(out, key+"="+value)
	}
	return out
}
