package reference

import (
	"slices"
	"strings"
	"testing"

	"hinit/internal/config"
)

func TestEveryKeyInForceIsOneOfTheSchema(t *testing.T) {
	var paths []string
	for base, keys := range Keys() {
		for _, k := range keys {
			paths = append(paths, base+k.Path)
		}
	}
	for _, e := range Default().Effective() {
		key := e.Key
		if rest, ok := strings.CutPrefix(key, "services.dashboard."); ok {
			key = "services.NAME." + rest
		}
		if rest, ok := strings.CutPrefix(key, "runs.kanban-worker."); ok {
			key = "runs.NAME." + rest
		}
		if rest, ok := strings.CutPrefix(key, "boot.hooks."); ok {
			_, name, _ := strings.Cut(rest, ".")
			key = "boot.hooks[]." + name
		}
		if i := strings.Index(key, ".env."); i >= 0 {
			key = key[:i+len(".env")]
		}
		if !slices.Contains(paths, key) {
			t.Errorf("%s is in force but in no schema", key)
		}
	}
}

// Each key must have a type that can be decoded and printed.
func TestEveryValueCanBeShown(t *testing.T) {
	for base, keys := range Keys() {
		for _, k := range keys {
			switch k.Value.(type) {
			case *map[string]string, *map[string]config.ResourceLimit, *[]config.Hook, *[]config.Check, *config.Actions:
			default:
				if config.JSONValue(k.Value) == nil {
					t.Errorf("%s%s: a %T cannot be shown", base, k.Path, k.Value)
				}
			}
		}
	}
}
