package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// at follows a dotted path of keys through a schema.
func at(t *testing.T, schema map[string]any, path string) map[string]any {
	t.Helper()
	for key := range strings.SplitSeq(path, ".") {
		if key == "NAME" {
			schema = schema["additionalProperties"].(map[string]any)
			continue
		}
		next, ok := schema["properties"].(map[string]any)[key].(map[string]any)
		if !ok {
			t.Fatalf("%s: there is no %s", path, key)
		}
		schema = next
	}
	return schema
}

func TestTheSchemaKnowsEveryKeyThatTheFileMayHave(t *testing.T) {
	schema := Schema()
	for _, f := range configFields() {
		if at(t, schema, f.path)["description"] == "" {
			t.Errorf("%s has no description", f.path)
		}
	}
	for _, f := range serviceFields() {
		at(t, schema, "services.NAME."+f.path)
	}
	for _, f := range profileFields() {
		at(t, schema, "profiles.NAME."+f.path)
	}
	for _, f := range profileLogFields() {
		at(t, schema, "logs.profiles.NAME."+f.path)
	}
	for _, f := range runFields() {
		at(t, schema, "runs.NAME."+f.path)
	}
	hook := at(t, schema, "boot.hooks")["items"].(map[string]any)
	for _, f := range hookFields() {
		at(t, hook, f.path)
	}
	if got := at(t, schema, "logs.console")["enum"]; !slices.Equal(got.([]string), []string{"raw", "prefixed", "json", "off"}) {
		t.Errorf("logs.console: %v", got)
	}
	if got := at(t, schema, "restart.max")["type"]; got != "string" {
		t.Errorf("restart.max: %v", got)
	}
	if got := at(t, schema, "services.NAME")["additionalProperties"]; got != false {
		t.Errorf("an unknown key of a service: %v", got)
	}
	text, err := json.Marshal(schema)
	if err != nil || strings.Contains(string(text), "](") {
		t.Errorf("%v in %s", err, text)
	}
}
