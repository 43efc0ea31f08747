package config

import (
	"strings"
	"syscall"
	"time"
)

// Schema returns a JSON schema (draft 2020-12) of hinit.yaml, for editors. It is made from the table that decodes the file. It knows keys, types
// and choices; what depends on more than one key, only [Load] knows. It does not block.
func Schema() map[string]any {
	root := defaults()
	hook, service, run := newHook(), newService(root, "NAME"), newRun()
	schema := object(configFields(), root)
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "hinit.yaml"
	schema["description"] = "The configuration of hinit. Every key is optional."
	put(schema, "boot.hooks", map[string]any{"type": "array", "items": object(hookFields(), &hook), "description": schemaText(find(configFields(), "boot.hooks").doc)})
	check := newCheck("")
	checks := map[string]any{"type": "array", "items": object(checkFields(""), &check), "description": "Checks of the service, or of the gateways."}
	put(schema, "agent.checks", checks)
	put(schema, "logs.profiles", byName("Limits for the log of one profile.", object(profileLogFields(), &root.Logs.LogLimits)))
	own := newProfile(root)
	profiles := schema["properties"].(map[string]any)["profiles"].(map[string]any)
	profile := object(profileFields(), &own)
	put(profile, "checks", checks)
	profiles["additionalProperties"] = profile
	services := object(serviceFields(), &service)
	put(services, "checks", checks)
	put(schema, "services", byName("What is supervised besides the gateways.", services))
	put(schema, "runs", byName("Commands that clients may have run once.", object(runFields(), &run)))
	return schema
}

// object is the schema of a mapping with these keys and no others.
func object[T any](fields []field[T], root *T) map[string]any {
	schema := map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
	for i := range fields {
		f := &fields[i]
		at := f.at(root)
		node := typeOf(at)
		if choices, ok := strings.CutPrefix(f.typ, "`"); ok {
			node["enum"] = strings.Split(strings.TrimSuffix(choices, "`"), "`, `")
		}
		node["description"] = schemaText(f.doc)
		put(schema, f.path, node)
	}
	for _, f := range fields {
		if f.short { // a text may stand for the whole mapping
			parent := mappingAt(schema, f.path[:strings.LastIndex(f.path, ".")])
			parent["type"] = []string{"object", "string"}
		}
	}
	return schema
}

// byName is the schema of a mapping of any names to values of one kind.
func byName(doc string, of map[string]any) map[string]any {
	return map[string]any{"type": "object", "additionalProperties": of, "description": doc}
}

// typeOf is what YAML may hold for the value at a schema pointer.
func typeOf(at any) map[string]any {
	text := map[string]any{"type": []string{"string", "number"}} // a number is text where text is wanted
	switch at.(type) {
	case *bool:
		return map[string]any{"type": "boolean"}
	case *int:
		return map[string]any{"type": "integer"}
	case *float64:
		return map[string]any{"type": "number"}
	case *time.Duration:
		return map[string]any{"type": "string", "pattern": `^[+]?([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`}
	case *syscall.Signal:
		return map[string]any{"type": []string{"string", "integer"}}
	case *Paths:
		return map[string]any{"type": []string{"string", "array"}, "items": text}
	case *[]string:
		return map[string]any{"type": "array", "items": text}
	case *[]int:
		return map[string]any{"type": "array", "items": map[string]any{"type": "integer"}}
	case *[]Need:
		return map[string]any{"type": "array", "items": map[string]any{"anyOf": []any{
			map[string]any{"type": "string"},
			map[string]any{
				"type": "object", "additionalProperties": false, "required": []string{"name"}, "properties": map[string]any{
					"name":     map[string]any{"type": "string"},
					"until":    map[string]any{"enum": []string{UntilStarted, UntilReady, UntilDone}},
					"optional": map[string]any{"type": "boolean"},
				},
			},
		}}}
	case *Actions:
		return actionsSchema()
	case *map[string]string, *map[string]ResourceLimit:
		return map[string]any{"type": "object", "additionalProperties": text}
	}
	return map[string]any{"type": text["type"]}
}

// put sets what is at a dotted path of an object's schema, and makes the objects on the way.
func put(schema map[string]any, path string, node map[string]any) {
	properties := schema["properties"].(map[string]any)
	first, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		properties[first] = node
		return
	}
	below, ok := properties[first].(map[string]any)
	if !ok {
		below = map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
		properties[first] = below
	}
	if _, ok := below["properties"]; ok {
		put(below, rest, node)
	}
}

// mappingAt returns the mapping at a dotted path of an object's schema.
func mappingAt(schema map[string]any, path string) map[string]any {
	for key := range strings.SplitSeq(path, ".") {
		schema = schema["properties"].(map[string]any)[key].(map[string]any)
	}
	return schema
}

// find returns the field at a path.
func find[T any](fields []field[T], path string) field[T] {
	for _, f := range fields {
		if f.path == path {
			return f
		}
	}
	return field[T]{}
}

// schemaText is a sentence of the reference without its markup.
func schemaText(doc string) string {
	for {
		before, link, ok := strings.Cut(doc, "](")
		if !ok {
			break
		}
		_, after, _ := strings.Cut(link, ")")
		doc = before + after
	}
	return strings.NewReplacer("`", "", "[", "").Replace(doc)
}
