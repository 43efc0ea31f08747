package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hinit/internal/config"
	"hinit/internal/gendocs/reference"
)

func schemaAt(t *testing.T, schema jsonObject, path string) jsonObject {
	t.Helper()
	for key := range strings.SplitSeq(path, ".") {
		if key == "NAME" {
			schema = schema["additionalProperties"].(jsonObject)
			continue
		}
		if name, list := strings.CutSuffix(key, "[]"); list {
			schema = schema["properties"].(jsonObject)[name].(jsonObject)["items"].(jsonObject)
			continue
		}
		next, ok := schema["properties"].(jsonObject)[key].(jsonObject)
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
	var schema jsonObject
	if err := json.Unmarshal([]byte(text), &schema); err != nil {
		t.Fatal(err)
	}
	for base, keys := range reference.Keys() {
		if base == "checks[]." || base == "on.EVENT[]." { // these keys are in $defs
			continue
		}
		for _, k := range keys {
			if schemaAt(t, schema, base+k.Path)["description"] == "" {
				t.Errorf("%s%s has no description", base, k.Path)
			}
		}
	}
	if got := schemaAt(t, schema, "logs.console")["enum"]; !slices.Equal(got.([]any), []any{"raw", "prefixed", "json", "off"}) {
		t.Errorf("logs.console: %v", got)
	}
	if got := schemaAt(t, schema, "restart.max")["type"]; got != "string" {
		t.Errorf("restart.max: %v", got)
	}
	if got := schemaAt(t, schema, "services.NAME")["additionalProperties"]; got != false {
		t.Errorf("an unknown key of a service: %v", got)
	}
}

// The JSON schema must refuse the values that hinit config check refuses, so that an editor marks them.
func TestTheSchemaRefusesWhatTheCheckRefuses(t *testing.T) {
	text, err := configSchema()
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonObject
	if err := json.Unmarshal([]byte(text), &schema); err != nil {
		t.Fatal(err)
	}
	nice := schemaAt(t, schema, "services.NAME.nice")
	if nice["minimum"] != -20.0 || nice["maximum"] != 19.0 {
		t.Errorf("nice: 50 is taken: %v", nice)
	}
	if jitter := schemaAt(t, schema, "restart.jitter"); jitter["maximum"] != 0.5 {
		t.Errorf("jitter: 3 is taken: %v", jitter)
	}
	signal := regexp.MustCompile(schemaAt(t, schema, "services.NAME.stop.signal")["pattern"].(string))
	if signal.MatchString("TERMINATE") || !signal.MatchString("TERM") || !signal.MatchString("sigint") {
		t.Errorf("signal: TERMINATE is taken, or TERM is not: %v", signal)
	}
	limits := schemaAt(t, schema, "services.NAME.limits")["propertyNames"].(jsonObject)["enum"].([]any)
	if slices.Contains(limits, any("nofiles")) || !slices.Contains(limits, any("nofile")) || !slices.Contains(limits, any("stack")) {
		t.Errorf("nofiles is taken, or nofile is not: %v", limits)
	}
	for _, name := range limits {
		text := fmt.Sprintf("services: {a: {command: [x], limits: {%s: 1}}}", name)
		if _, err := config.Load(config.Options{Content: []byte(text)}); err != nil {
			t.Errorf("the schema has the limit %s: %v", name, err)
		}
	}
	if codes := schemaAt(t, schema, "services.NAME.park_on")["items"].(jsonObject); codes["maximum"] != 255.0 {
		t.Errorf("park_on: [300] is taken: %v", codes)
	}
	if port := schema["$defs"].(jsonObject)["checks"].(jsonObject)["items"].(jsonObject)["properties"].(jsonObject)["tcp"].(jsonObject)["properties"].(jsonObject)["port"].(jsonObject); port["maximum"] != 65535.0 {
		t.Errorf("port: 99999 is taken: %v", port)
	}
	if restart := schemaAt(t, schema, "services.NAME.restart")["anyOf"]; !strings.Contains(fmt.Sprint(restart), "on-failure") {
		t.Errorf("restart: sometimes is taken: %v", restart)
	}
	if fd := schemaAt(t, schema, "services.NAME.notify.fd"); fd["anyOf"] == nil || fd["maximum"] != 1023.0 {
		t.Errorf("fd: 1 is taken: %v", fd)
	}
	if on := schemaAt(t, schema, "services.NAME.true"); on["$ref"] != schemaAt(t, schema, "on")["$ref"] {
		t.Errorf("on, as a tool for YAML 1.1 reads it, is %v", on)
	}
}

func TestReferenceNamesEveryKey(t *testing.T) {
	text, mean, used := configPage(), readKeyDescriptions(), map[string]bool{}
	for base, keys := range reference.Keys() {
		for _, k := range keys {
			path := base + k.Path
			if !strings.Contains(text, "- `"+path+"` ") && !strings.Contains(text, "- `"+path+"`"+rootMark+" ") && !listedAgain(text, base, k.Path) {
				t.Errorf("the reference lacks %s", path)
			}
			if doc := mean.description(path); !strings.HasSuffix(doc, ".") {
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
		if n := strings.Count(line, "|"); n != 0 && n != 3 && n != 4 {
			t.Errorf("a broken table row: %s", line)
		}
	}
}

// listedAgain reports whether the list after the table of base contains the key.
func listedAgain(page, base, key string) bool {
	_, list, _ := strings.Cut(page, "These keys of `"+strings.TrimSuffix(base, ".")+"` have")
	list, _, _ = strings.Cut(list, "\n")
	mapping, last := "", key
	if i := strings.LastIndex(key, "."); i >= 0 {
		mapping, last = key[:i+1], key[i+1:]
	}
	if mapping != "" && strings.Contains(list, "`"+mapping+"*`") {
		return true
	}
	return regexp.MustCompile("`" + regexp.QuoteMeta(mapping) + `(\{[^` + "`" + `]*\b)?` + last + `(\b[^` + "`" + `]*\})?` + "`").MatchString(list)
}
