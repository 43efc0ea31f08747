package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"hinit/internal/config"
	"hinit/internal/gendocs/reference"
)

var (
	//go:embed keys.txt
	keysText string // text with a line "KEY: meaning" for each key of hinit.yaml, see keyDescriptions
	//go:embed hinit-yaml.md.in
	configText string // text of the page around the tables
)

// keyDescriptions maps keys of hinit.yaml to their descriptions in keys.txt. A description applies to every path that ends with
// its key. If several keys apply to a path, the longest one counts.
type keyDescriptions map[string]string

func readKeyDescriptions() keyDescriptions {
	m := keyDescriptions{}
	for line := range strings.Lines(keysText) {
		key, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		m[key] = text
	}
	return m
}

func (m keyDescriptions) description(path string) (text string) {
	for rest, more := path, true; more; _, rest, more = strings.Cut(rest, ".") {
		if text, ok := m[rest]; ok {
			return text
		}
	}
	return ""
}

// configPage returns the reference page of hinit.yaml. It replaces each line "@table PATH" in the text with the table of the keys
// inside that path.
func configPage() string {
	keys, mean := reference.Keys(), readKeyDescriptions()
	described := map[string]string{} // path of the first key with each combination of type and description
	var b strings.Builder
	for line := range strings.Lines(configText) {
		switch word, base, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); word {
		case "@table":
			writeKeyTable(&b, base, keys[base], mean, described)
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}

// writeKeyTable writes a line for each key with a new type or description. Then it lists the keys that an earlier table already
// describes.
func writeKeyTable(b *strings.Builder, base string, keys []reference.Key, mean keyDescriptions, described map[string]string) {
	var rows strings.Builder
	var again []string
	for _, k := range keys {
		doc := mean.description(base + k.Path)
		first, ok := described[typeText(k)+doc]
		switch {
		case ok && first == k.Path || ok && base != "" && strings.HasSuffix(first, "."+k.Path):
			again = append(again, k.Path)
		case ok:
			fmt.Fprintf(&rows, "- `%s` %s: As `%s`.\n", base+k.Path, withDefault("same", defaultOf(base, k)), first)
		default:
			described[typeText(k)+doc] = base + k.Path
			rows.WriteString(keyRow(base, k, doc))
		}
	}
	if rows.Len() > 0 {
		b.WriteString(rows.String() + "\n")
	}
	if len(again) > 0 {
		fmt.Fprintf(b, "These keys of `%s` have the meaning given above: %s.\n", strings.TrimSuffix(base, "."), strings.Join(joinKeyPaths(again), ", "))
	}
}

// joinKeyPaths converts the paths of keys to text. It joins neighbouring keys of one mapping: `stop.{signal,grace}`, or `stop.*`
// for all of them.
func joinKeyPaths(paths []string) (named []string) {
	last := ""
	left := map[string]int{} // number of keys of each mapping that are in the first table but not in paths
	for _, k := range reference.Keys()[""] {
		left[strings.TrimPrefix(k.Path[:strings.LastIndex(k.Path, ".")+1], "agent.")]++
	}
	for _, path := range paths {
		left[path[:strings.LastIndex(path, ".")+1]]--
	}
	for _, path := range paths {
		i := strings.LastIndex(path, ".") + 1
		mapping, key := path[:i], path[i:]
		if mapping != "" && left[mapping] == 0 {
			if mapping != last {
				named = append(named, "`"+mapping+"*`")
			}
			last = mapping
			continue
		}
		if mapping != "" && mapping == last {
			named[len(named)-1] = strings.TrimSuffix(named[len(named)-1], "`") + ", " + key + "`"
		} else {
			named = append(named, "`"+path+"`")
		}
		last = mapping
	}
	for i, name := range named {
		if first, rest, several := strings.Cut(name, ", "); several {
			dot := strings.LastIndex(first, ".") + 1
			named[i] = first[:dot] + "{" + first[dot:] + ", " + strings.TrimSuffix(rest, "`") + "}`"
		}
	}
	return named
}

// placeholderMarks maps each set of placeholders to its footnote mark on the page.
var placeholderMarks = map[string]string{
	"agent profile home profile_home": "¹",
	"agent home":                      "²",
}

func keyRow(base string, k reference.Key, doc string) string {
	typ := typeText(k)
	if strings.HasPrefix(typ, "signal: ") { // name no signals, because the introduction of the page lists them
		typ = "signal"
	}
	if mark := placeholderMarks[strings.Join(k.Placeholders, " ")]; mark != "" {
		typ += mark
	} else if len(k.Placeholders) > 0 {
		typ += " with `{" + strings.Join(k.Placeholders, "}` `{") + "}`"
	}
	if k.Env != "" {
		doc = "Variable: `" + k.Env + "`. " + doc
	}
	mark := ""
	if k.RootOnly {
		mark = rootMark
	}
	return fmt.Sprintf("- `%s`%s %s: %s\n", base+k.Path, mark, withDefault(typ, defaultOf(base, k)), doc)
}

// rootMark marks a key that has an effect only in a file that root alone can change.
const rootMark = "ᴿ"

// withDefault appends a default to the text of a type.
func withDefault(typ, value string) string {
	if value == "" {
		return typ
	}
	// The default value shows the type, so leave the type out.
	if slices.Contains([]string{"duration", "integer", "number", "bool"}, typ) && !strings.HasPrefix(value, "as ") {
		return value
	}
	return typ + "; " + value
}

// defaultOf returns the default of a key in the form of hinit.yaml. It returns "" if the default is empty or the key is
// required.
func defaultOf(base string, k reference.Key) string {
	text := "`" + yamlFlow(k.Value) + "`"
	blank := slices.Contains([]string{"`\"\"`", "`[]`", "`0s`", "`{}`", "`0`", "`\"0\"`", "`false`"}, text)
	switch {
	case k.Inherits != "":
		return "as `" + k.Inherits + "`"
	case k.Alias != "" && base != "":
		return "as `" + base + k.Alias + "`"
	case k.Path == "command" && base != "runs.NAME.", k.Path == "enabled", k.Path == "kind":
		return ""
	case k.Path == "boot.hooks":
		return "[these](#hooks)"
	case blank, base == "on.EVENT[]." && k.Path != "timeout":
		return ""
	}
	return text
}

// yamlFlow returns the value at *at as YAML on one line.
func yamlFlow(at any) string {
	switch at := at.(type) {
	case *map[string]string:
		parts := make([]string, 0, len(*at))
		for _, name := range slices.Sorted(maps.Keys(*at)) {
			parts = append(parts, name+": "+yamlWord((*at)[name]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case *map[string]config.ResourceLimit, *config.Actions:
		return "{}"
	case *[]config.Check:
		return "[]"
	case *[]config.Hook:
		hooks := make([]string, len(*at))
		for i, h := range *at {
			hooks[i] = "{command: " + yamlFlow(&h.Command) + ", if_exists: " + yamlWord(h.IfExists) + ", inputs: …}"
		}
		return "[" + strings.Join(hooks, ", ") + "]"
	case *time.Duration:
		return config.JSONValue(at).(string)
	}
	switch v := config.JSONValue(at).(type) {
	case []string:
		parts := make([]string, len(v))
		for i, word := range v {
			parts[i] = yamlWord(word)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case []int:
		return strings.ReplaceAll(fmt.Sprint(v), " ", ", ")
	case string:
		return yamlWord(v)
	default:
		return fmt.Sprint(v)
	}
}

// yamlWord returns a word as YAML. It quotes the word if YAML would not read it as text.
func yamlWord(s string) string {
	for i := range len(s) {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 && c != '/' || i > 0 && !strings.ContainsRune("0123456789/._-", rune(c)) && c != '-') {
			return fmt.Sprintf("%q", s)
		}
	}
	switch strings.ToLower(s) {
	case "", "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return fmt.Sprintf("%q", s)
	}
	return s
}

type jsonObject = map[string]any

// configSchema returns the JSON schema of hinit.yaml.
func configSchema() (string, error) {
	keys, mean := reference.Keys(), readKeyDescriptions()
	of := func(base string) jsonObject { return mappingSchema(base, keys[base], mean) }
	byName := func(doc, base string) jsonObject {
		return jsonObject{"type": "object", "additionalProperties": of(base), "description": doc}
	}
	schema := of("")
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "hinit.yaml"
	schema["description"] = "The configuration of hinit. Every key is optional."
	insertNode(schema, "boot.hooks", jsonObject{"type": "array", "items": of("boot.hooks[]."), "description": plainText(mean.description("boot.hooks"))})
	insertNode(schema, "logs.profiles", byName("Limits for the log of one profile.", "logs.profiles.NAME."))
	schema["properties"].(jsonObject)["profiles"].(jsonObject)["additionalProperties"] = of("profiles.NAME.")
	insertNode(schema, "services", byName("What is supervised besides the gateways.", "services.NAME."))
	insertNode(schema, "runs", byName("Commands that clients may have run once.", "runs.NAME."))
	one := jsonObject{"$ref": "#/$defs/action"}
	events := jsonObject{}
	for _, event := range config.ActionEvents {
		events[event] = jsonObject{"anyOf": []any{one, jsonObject{"type": "array", "items": one}}}
	}
	schema["$defs"] = jsonObject{
		"action":  of("on.EVENT[]."),
		"actions": jsonObject{"type": "object", "additionalProperties": false, "properties": events},
		"checks":  jsonObject{"type": "array", "items": of("checks[]."), "description": "Checks of the service, or of the gateways."},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(schema)
	return b.String(), err
}

// mappingSchema returns the JSON schema of a mapping that may have only the given keys.
func mappingSchema(base string, keys []reference.Key, mean keyDescriptions) jsonObject {
	schema := jsonObject{"type": "object", "additionalProperties": false, "properties": jsonObject{}}
	for _, k := range keys {
		node := typeSchema(k.Value)
		if choices := keyChoices(k); choices != nil {
			node["enum"] = choices
		}
		switch k.Value.(type) {
		case *int, *float64:
			addBounds(node, base+k.Path)
		case *syscall.Signal:
			node = jsonObject{"type": "string", "pattern": anyCasePattern("SIG", backquotedWords(typeText(k)))}
		case *[]int:
			node["items"] = jsonObject{"type": "integer", "minimum": 0, "maximum": 255}
		case *map[string]config.ResourceLimit:
			node = limitsSchema(backquotedWords(strings.Split(mean.description("limits"), ".")[0]))
		}
		if k.Type == "port" {
			node["minimum"], node["maximum"] = 1, 65535
		}
		node["description"] = plainText(mean.description(base + k.Path))
		insertNode(schema, k.Path, node)
		if k.Path == "on" {
			insertNode(schema, "true", node)
		}
	}
	for _, k := range keys {
		if k.AllowsShortForm {
			parent := schema
			for key := range strings.SplitSeq(k.Path[:strings.LastIndex(k.Path, ".")], ".") {
				parent = parent["properties"].(jsonObject)[key].(jsonObject)
			}
			parent["type"] = []string{"object", "string"}
			if choices := keyChoices(k); choices != nil {
				parent["anyOf"] = []jsonObject{{"type": "object"}, {"enum": choices}}
			}
		}
	}
	return schema
}

// typeSchema returns the JSON schema of a YAML value. at points to the variable into which hinit decodes the value.
func typeSchema(at any) jsonObject {
	text := jsonObject{"type": []string{"string", "number"}} // also accept a number as text
	switch at.(type) {
	case *bool:
		return jsonObject{"type": "boolean"}
	case *config.Switch:
		return jsonObject{"enum": []any{true, false, string(config.Auto)}}
	case *int:
		return jsonObject{"type": "integer"}
	case *float64:
		return jsonObject{"type": "number"}
	case *time.Duration:
		return jsonObject{"type": "string", "pattern": `^[+]?([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`}
	case *config.Paths:
		return jsonObject{"type": []string{"string", "array"}, "items": text}
	case *[]string:
		return jsonObject{"type": "array", "items": text}
	case *[]int:
		return jsonObject{"type": "array", "items": jsonObject{"type": "integer"}}
	case *[]config.Need:
		return jsonObject{"type": "array", "items": jsonObject{"anyOf": []any{
			jsonObject{"type": "string"},
			jsonObject{
				"type": "object", "additionalProperties": false, "required": []string{"name"}, "properties": jsonObject{
					"name":     jsonObject{"type": "string"},
					"until":    jsonObject{"enum": []string{config.UntilStarted, config.UntilReady, config.UntilDone}},
					"optional": jsonObject{"type": "boolean"},
				},
			},
		}}}
	case *[]config.Check:
		return jsonObject{"$ref": "#/$defs/checks"}
	case *config.Actions:
		return jsonObject{"$ref": "#/$defs/actions"}
	case *map[string]string:
		return jsonObject{"type": "object", "additionalProperties": text}
	}
	return text
}

// insertNode inserts a node at a dotted path into an object's schema. It creates missing objects on the path.
func insertNode(schema jsonObject, path string, node jsonObject) {
	properties := schema["properties"].(jsonObject)
	first, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		properties[first] = node
		return
	}
	below, ok := properties[first].(jsonObject)
	if !ok {
		below = jsonObject{"type": "object", "additionalProperties": false, "properties": jsonObject{}}
		properties[first] = below
	}
	if _, ok := below["properties"]; ok {
		insertNode(below, rest, node)
	}
}

// plainText returns a description without its Markdown markup.
func plainText(doc string) string {
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

func typeText(k reference.Key) string {
	if k.Type != "" {
		return k.Type
	}
	switch k.Value.(type) {
	case *bool:
		return "bool"
	case *config.Switch:
		return "bool or `auto`"
	case *int:
		return "integer"
	case *float64:
		return "number"
	case *time.Duration:
		return "duration"
	case *[]string:
		return "list of words"
	case *[]int:
		return "list of numbers"
	case *config.Bytes:
		return "size"
	case *config.Paths:
		return "path, or list"
	case *map[string]string:
		return "map of text"
	case *[]config.Hook:
		return "list of hooks"
	case *[]config.Need:
		return "list of names or `{name, until, optional}`"
	case *map[string]config.ResourceLimit:
		return "mapping of limits"
	case *config.Actions:
		return "mapping of events to actions"
	case *syscall.Signal:
		return "signal: `" + strings.Join(config.Signals, "`, `") + "`"
	case *[]config.Check:
		return "list of checks"
	default:
		return "text"
	}
}
