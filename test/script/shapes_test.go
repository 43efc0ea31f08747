package script_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// jsonPage is the content of docs/reference/json.md: each command's object, and each object's keys.
type jsonPage struct {
	commands map[string]string // Object name by command, such as "Profile row" for "profile list".
	objects  map[string]map[string]pageKey
}

type pageKey struct {
	object   string
	optional bool // Whether the key may be missing.
}

var (
	commandRow = regexp.MustCompile("^- (`[a-z`, -]+`): .*\\[([A-Za-z ]+)\\]\\(#")
	keyRow     = regexp.MustCompile("^- `([a-z_]+)`(\\??)([^:\\n]*)")
	pageObject = regexp.MustCompile(`\[([A-Za-z ]+)\]\(#`)
)

func readJSONPage() (*jsonPage, error) {
	text, err := os.ReadFile("../../docs/reference/json.md")
	if err != nil {
		return nil, err
	}
	p := &jsonPage{commands: make(map[string]string), objects: make(map[string]map[string]pageKey)}
	section := ""
	for line := range strings.Lines(string(text)) {
		if name, is := strings.CutPrefix(line, "## "); is {
			section = strings.TrimSpace(name)
			p.objects[section] = make(map[string]pageKey)
		} else if m := commandRow.FindStringSubmatch(line); m != nil && section == "" {
			for command := range strings.SplitSeq(m[1], ", ") {
				p.commands[strings.Trim(command, "`")] = m[2]
			}
		} else if m := keyRow.FindStringSubmatch(line); m != nil && section != "" {
			k := pageKey{optional: m[2] != ""}
			if o := pageObject.FindStringSubmatch(m[3]); o != nil {
				k.object = o[1]
			}
			p.objects[section][m[1]] = k
		}
	}
	return p, nil
}

// check compares a value with an object of the page.
func (p *jsonPage) check(v any, object string) error {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		for _, one := range v {
			if err := p.check(one, object); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		keys := p.objects[object]
		if len(keys) == 0 {
			return fmt.Errorf("the page has no object %q", object)
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if _, there := v[key]; !there && !keys[key].optional {
				return fmt.Errorf("%q of %s was not printed", key, object)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			k, known := keys[key]
			if !known {
				return fmt.Errorf("the page does not have the key %q of %s", key, object)
			}
			if k.object == "" {
				continue
			}
			if err := p.check(v[key], k.object); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		return nil
	}
	return fmt.Errorf("%v is no %s", v, object)
}

// cmdShapes runs every command of the JSON page and compares its output with the page.
func cmdShapes(ts *testscript.TestScript, args []string) error {
	page, err := readJSONPage()
	if err != nil {
		return err
	}
	for _, arg := range args {
		command, words, _ := strings.Cut(arg, ";")
		object, known := page.commands[command]
		if !known {
			return fmt.Errorf("the page does not have %q, or it was typed before", command)
		}
		delete(page.commands, command)
		typed := append(strings.Fields(command+" "+words), "--json")
		if command == "reexec" {
			if err := checkReexec(ts, append(append(nsenterArgs(containerOf(ts), 0), filepath.Join(built.bin, "hinit")), typed...)); err != nil {
				return err
			}
		} else {
			cmdHinit(ts, false, typed)
		}
		d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
		documents := 0
		for d.More() {
			var v any
			if err := d.Decode(&v); err != nil {
				return fmt.Errorf("hinit %s: %w", strings.Join(typed, " "), err)
			}
			if list, is := v.([]any); is && len(list) == 0 {
				return fmt.Errorf("hinit %s: the list is empty, so nothing is tested", strings.Join(typed, " "))
			}
			if err := page.check(v, object); err != nil {
				return fmt.Errorf("hinit %s: %w", strings.Join(typed, " "), err)
			}
			documents++
		}
		if documents == 0 {
			return fmt.Errorf("hinit %s printed nothing", strings.Join(typed, " "))
		}
	}
	if len(page.commands) > 0 {
		return fmt.Errorf("these commands of the page were not typed: %v", slices.Sorted(maps.Keys(page.commands)))
	}
	if len(page.objects) < 15 {
		return errors.New("the page was not understood")
	}
	return nil
}
