package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"hinit/internal/config"
)

// at follows a dotted path of keys through a schema.
func at(t *testing.T, schema object, path string) object {
	t.Helper()
	for key := range strings.SplitSeq(path, ".") {
		if key == "NAME" {
			schema = schema["additionalProperties"].(object)
			continue
		}
		if name, list := strings.CutSuffix(key, "[]"); list {
			schema = schema["properties"].(object)[name].(object)["items"].(object)
			continue
		}
		next, ok := schema["properties"].(object)[key].(object)
		if !ok {
			t.Fatalf("%s: there is no %s", path, key)
		}
		schema = next
	}
	return schema
}

func TestTheSchemaKnowsEveryKeyThatTheFileMayHave(t *testing.T) {
	text, err := configSchema()
	if err != nil || strings.Contains(text, "](") {
		t.Fatalf("%v in %s", err, text)
	}
	var schema object
	if err := json.Unmarshal([]byte(text), &schema); err != nil {
		t.Fatal(err)
	}
	for base, keys := range config.Keys() {
		if base == "checks[]." || base == "on.EVENT[]." { // they are in $defs
			continue
		}
		for _, k := range keys {
			if at(t, schema, base+k.Path)["description"] == "" {
				t.Errorf("%s%s has no description", base, k.Path)
			}
		}
	}
	if got := at(t, schema, "logs.console")["enum"]; !slices.Equal(got.([]any), []any{"raw", "prefixed", "json", "off"}) {
		t.Errorf("logs.console: %v", got)
	}
	if got := at(t, schema, "restart.max")["type"]; got != "string" {
		t.Errorf("restart.max: %v", got)
	}
	if got := at(t, schema, "services.NAME")["additionalProperties"]; got != false {
		t.Errorf("an unknown key of a service: %v", got)
	}
}

func TestReferenceNamesEveryKey(t *testing.T) {
	text, mean, used := configPage(), readMeanings(), map[string]bool{}
	for base, keys := range config.Keys() {
		for _, k := range keys {
			path := base + k.Path
			if !strings.Contains(text, "| `"+path+"` |") {
				t.Errorf("the reference lacks %s", path)
			}
			if doc := mean.of(path); !strings.HasSuffix(doc, ".") {
				t.Errorf("%s: the meaning is %q; write it into keys.txt", path, doc)
			}
			for suffix, more := path, true; more; _, suffix, more = strings.Cut(suffix, ".") {
				if _, known := mean[suffix]; known {
					used[suffix] = true
					break
				}
			}
		}
	}
	for key := range mean {
		if !used[key] {
			t.Errorf("keys.txt has %s, which is no key", key)
		}
	}
	for line := range strings.Lines(text) {
		if n := strings.Count(line, "|"); n != 0 && n != 4 && n != 6 {
			t.Errorf("a broken table row: %s", line)
		}
	}
}
