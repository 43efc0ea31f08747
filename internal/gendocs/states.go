package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// words explains the events of the picture, in the order of the page. A picture with another word can't be generated.
var words = []struct{ name, meaning string }{
	{"start", "an operator starts it, or the boot does"},
	{"stop", "an operator or the end of the container stops it, or its profile is gone"},
	{"restart", "an operator restarts it"},
	{"met", "its last need is there"},
	{"spawned", "the process was started"},
	{"spawnfail", "it could not be started, this time"},
	{"spawnbad", "it can't be started as it is defined"},
	{"crash", "the main process ended, and nothing it started is left"},
	{"gone", "the last process of the run ended"},
	{"park", "it ended with an exit code that parks (`restart.park_on`)"},
	{"again", "it ended with an exit code that asks for a start at once (`restart.immediate_on`)"},
	{"inputs", "`config.yaml`, `.env` or the marker file in its home changed"},
	{"deadline", "the time of this state is over, such as the delay of a restart"},
}

// states makes the page from the comments of the constants. The whole transition table is the comment at the head of the machine.
func states(root string) (string, error) {
	stateDocs, err := constants(filepath.Join(root, "client", "status.go"), "State")
	if err != nil {
		return "", err
	}
	causeDocs, err := constants(filepath.Join(root, "supervisor", "states.go"), "Cause")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# States of a service

<!-- Generated from supervisor/machine.go, supervisor/states.go and client/status.go by internal/gendocs. Do not edit. -->

` + "`hinit status`" + `, the control API and the events use these words.

`)
	for _, d := range stateDocs {
		fmt.Fprintf(&b, "- `%s`: %s\n", d.value, d.doc)
	}
	b.WriteString(`
` + "`crash_loop`" + ` is a mark beside the state: too many fast exits. hinit goes on starting the service, at the longest delay.

## Transitions

![The states and the main transitions between them](../img/states.svg)

All transitions are at the head of [machine.go](../../supervisor/machine.go). Only services of s6 service directories have finish commands.

`)
	drawn := make(map[string]bool)
	for _, a := range arrows {
		for _, event := range a.events {
			drawn[event] = true
		}
	}
	for _, w := range words {
		fmt.Fprintf(&b, "- %s: %s\n", w.name, w.meaning)
		delete(drawn, w.name)
	}
	if len(drawn) > 0 {
		return "", fmt.Errorf("cannot explain the events %v of the picture", slices.Sorted(maps.Keys(drawn)))
	}
	b.WriteString(`
## Causes of an exit

Every exit has a cause, and keeps the last 20 lines the process wrote.

`)
	for _, d := range causeDocs {
		fmt.Fprintf(&b, "- `%s`: %s\n", d.value, d.doc)
	}
	return b.String(), nil
}

// transitions reads the rows below the line of dashes in the comment: state, event, next state, action.
func transitions(file string) ([][4]string, error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the transition table: %w", err)
	}
	var rows [][4]string
	inside := false
	for line := range strings.Lines(string(source)) {
		cells := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "//"))
		switch {
		case len(cells) > 0 && strings.HasPrefix(cells[0], "-----"):
			inside = true
		case inside && (len(cells) < 3 || len(cells) > 4):
			inside = false
			if len(rows) > 0 {
				return rows, nil
			}
		case inside:
			rows = append(rows, [4]string(append(cells, "")[:4]))
		}
	}
	return nil, fmt.Errorf("cannot find the transition table in %q", file)
}

// constant is a string constant with the comment behind it.
type constant struct{ value, doc string }

// constants returns the constants of a type in a file, and untyped constants whose names begin with the type's name.
func constants(file, typ string) ([]constant, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("cannot read the constants: %w", err)
	}
	var out []constant
	for _, decl := range f.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				continue
			}
			name, typed := v.Type.(*ast.Ident)
			literal, isText := v.Values[0].(*ast.BasicLit)
			if !isText || literal.Kind != token.STRING || typed && name.Name != typ || !typed && !strings.HasPrefix(v.Names[0].Name, typ) {
				continue
			}
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				return nil, fmt.Errorf("cannot read constant %q: %w", v.Names[0].Name, err)
			}
			out = append(out, constant{value, strings.TrimSpace(v.Comment.Text())})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("cannot find constants of type %s in %q", typ, file)
	}
	return out, nil
}
