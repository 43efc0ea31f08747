package imports

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"hinit/internal/config"
)

// Each line of rules.txt must be a rule with a key of hinit.yaml and a conversion that exist, in a section that an importer
// reads. Otherwise a setting would be left out without a note.
func TestALineOfTheTableOfRulesWasNoRule(t *testing.T) {
	known := make(map[string]bool)
	for _, key := range config.Keys[config.Service]() {
		known[key.Path] = true
	}
	for _, key := range config.Keys[config.Check]() {
		known[key.Path] = true
	}
	read := make(map[string]bool)
	for _, name := range []string{"checks", "compose", "pebble", "rules", "s6", "supervisord", "systemd", "systemd_values"} {
		code, err := os.ReadFile(name + ".go")
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range regexp.MustCompile(`parseRules\("(.*?)"\)`).FindAllStringSubmatch(string(code), -1) {
			read[call[1]] = true
			if len(parseRules(call[1])) == 0 {
				t.Errorf("there are no rules in the section %q", call[1])
			}
		}
	}
	for line := range strings.SplitSeq(strings.TrimSpace(ruleTable), "\n") {
		part := ruleLine.FindStringSubmatch(line)
		switch {
		case line == "", line[0] == '#':
		case line[0] == '[':
			if !read[strings.Trim(line, "[]")] {
				t.Errorf("no importer reads the section %s", line)
			}
		case part == nil:
			t.Errorf("no rule: %s", line)
		case part[4] != "" && !known[part[4]]:
			t.Errorf("hinit.yaml has no key %q: %s", part[4], line)
		case part[6] != "" && conversions[part[6]] == nil:
			t.Errorf("there is no conversion %q: %s", part[6], line)
		}
		if part != nil {
			regexp.MustCompile("^(?:" + part[1] + ")$")
		}
	}
}
