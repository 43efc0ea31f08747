package config

import _ "embed"

// Schema is a JSON schema (draft 2020-12) of hinit.yaml, for editors. It has keys, types and choices. Rules that concern more than
// one key are in [Load] only. internal/gendocs makes it from the schema that decodes the file.
//
//go:embed hinit.schema.json
var Schema string

// Key describes one key in a table of the reference.
type Key struct {
	Path, Env, Inherits, Alias string

	Type        string   // type of the value in words; "" if its Go type is enough
	Holes       []string // placeholders that its text may have
	Root, Short bool     // only root may set it; a text in the place of its mapping sets this key
	Value       any      // pointer to its default
}

// Keys returns the keys of each mapping of hinit.yaml, by the path of the mapping.
func Keys() map[string][]Key {
	root := defaults()
	hook, service, profile, run := newHook(), newService(root, "NAME"), newProfile(root), newRun()
	run.Command = kanbanWorker()
	check, action := newCheck(CheckAlive), newAction()
	return map[string][]Key{
		"":                    keysOf(configFields(), root),
		"logs.profiles.NAME.": keysOf(logFields(), &root.Logs.LogLimits),
		"profiles.NAME.":      keysOf(profileFields(), &profile),
		"boot.hooks[].":       keysOf(hookFields(), &hook),
		"services.NAME.":      keysOf(serviceFields(), &service),
		"checks[].":           keysOf(checkFields(""), &check),
		"on.EVENT[].":         keysOf(actionFields(), &action),
		"runs.NAME.":          keysOf(runFields(), &run),
	}
}

func keysOf(fields []field, root any) (keys []Key) {
	for _, f := range fields {
		keys = append(keys, Key{f.path, f.env, f.inherits, f.alias, f.is.name, f.holes, f.root, f.short, f.at(root)})
	}
	return keys
}
