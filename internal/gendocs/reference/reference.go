// Package reference lists the keys of hinit.yaml with their defaults. The generated pages and tests use it. It owns no goroutine.
package reference

import (
	"hinit/internal/config"
)

// Key is one key of hinit.yaml with its default value.
type Key struct {
	config.Key
	Value any // pointer to the default value
}

// Keys returns the keys of each mapping of hinit.yaml. The map's key is the path of the mapping, such as "services.NAME.".
func Keys() map[string][]Key {
	root := config.Defaults()
	run := config.NewRun()
	run.Command = config.KanbanWorkerCommand()
	return map[string][]Key{
		"":                    keysOf(root),
		"logs.profiles.NAME.": keysOf(&root.Logs.LogLimits),
		"profiles.NAME.":      keysOf(new(config.NewProfile(root))),
		"boot.hooks[].":       keysOf(new(config.NewHook())),
		"services.NAME.":      keysOf(new(config.NewService(root, "NAME"))),
		"checks[].":           keysOf(new(config.NewCheck(config.CheckAlive))),
		"on.EVENT[].":         keysOf(new(config.NewAction())),
		"runs.NAME.":          keysOf(&run),
	}
}

func keysOf[T any](root *T) (keys []Key) {
	for _, k := range config.Keys[T]() {
		keys = append(keys, Key{k, k.ValuePointer(root)})
	}
	return keys
}

// Default returns the configuration that applies without a file and with an empty environment.
func Default() *config.Config {
	c, err := config.Load(config.Options{Content: []byte{}, ImageDir: "/nonexistent", Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		panic("internal error: the defaults are no valid configuration: " + err.Error())
	}
	return c
}
