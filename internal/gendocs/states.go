package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// words explains the events of the transition table, in the order of the page. A table that uses another word than these
// can't be generated, so that no word stays unexplained.
var words = []struct{ name, meaning string }{
	{"start", "an operator starts it, or the boot does"},
	{"stop", "an operator stops it, its profile is gone, or the container stops"},
	{"restart", "an operator restarts it"},
	{"once", "an operator asks for one run that is not repeated"},
	{"due", "its schedule has it started now"},
	{"lacking", "it is to start, and something that it needs is not there"},
	{"crowded", "it is to start, and as many as may start at the same time do"},
	{"turn", "one of those before it is ready, has ended, or has had its time"},
	{"needsmet", "the last thing that it needs is there"},
	{"follow", "a service with which it is restarted (`restart_on`) was started anew"},
	{"over", "it ended with exit code 0, and its policy starts it only after failures (`restart: on-failure`)"},
	{"never", "it failed, and its policy never starts it again (`restart: never`)"},
	{"limit", "it ended, and was restarted too often before (`restart.max_restarts`)"},
	{"unwant", "an operator wants it down without ending it"},
	{"pause", "an operator stops its process for a while"},
	{"continue", "an operator lets it go on"},
	{"send", "an operator sends a signal to the main process"},
	{"unhealthy", "a check gives the run up"},
	{"ending", "the service says that it is stopping"},
	{"sendgroup", "an operator sends a signal to the process group of the main process"},
	{"met", "the last thing it waits for is there"},
	{"spawned", "the process was started"},
	{"spawnfail", "the process could not be started, this time"},
	{"spawnbad", "the process can't be started as it is defined"},
	{"crash", "the main process ended, and nothing it started is left"},
	{"dies", "like crash, of a service with a finish command"},
	{"finished", "the finish command ended, or there is none after all"},
	{"permanent", "the finish command ended with the code that says: don't start it again"},
	{"leftover", "the main process, or the finish command, ended, and processes it started are alive"},
	{"gone", "the last process of the run ended"},
	{"park", "it ended with an exit code that parks (`restart.park_on`)"},
	{"again", "it ended with an exit code that asks for a start at once (`restart.immediate_on`)"},
	{"replaced", "its exit is explained by another instance that took over"},
	{"inputs", "`config.yaml`, `.env` or the marker file in its home changed, and its last run had been long or its delay is over"},
	{"inputssoon", "they changed before that: the service may have changed them itself, so that is delayed like a crash"},
	{"deadline", "the time of this state is over: the delay of a restart, the grace of a stop, the time for the finish command"},
}

// actions explains the third column.
var actions = map[string]string{
	"":            "",
	"spawn":       "start the process",
	"spawnfinish": "start the finish command",
	"signal":      "signal the main process",
	"signalgroup": "signal the process group of the main process",
	"signaltree":  "signal every process of the run",
}

// states makes the page from the comment at the head of the machine, which a test walks cell by cell, and from the
// comments of the constants.
func states(root string) (string, error) {
	rows, err := transitions(filepath.Join(root, "supervisor", "machine.go"))
	if err != nil {
		return "", err
	}
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

` + "`hinit status`" + `, the control API and the events use these words. ` + "`reason`" + ` explains a state to people. ` + "`want`" + ` is ` + "`up` or `down`" + `, as the operator asked.

| State | Meaning |
|---|---|
`)
	for _, d := range stateDocs {
		fmt.Fprintf(&b, "| `%s` | %s |\n", d.value, d.doc)
	}
	b.WriteString(`
` + "`crash_loop`" + ` is a mark beside the state: too many fast exits within ` + "`restart.crash_loop_window`" + `. hinit goes on starting the service,
at the longest delay.

## Transitions

![The states and the main transitions between them](../img/states.svg)

| State | What happens | Next state | What hinit does |
|---|---|---|---|
`)
	used := make(map[string]bool)
	var results [][4]string // state, its events with this result, next state, action
	for _, r := range rows {
		used[r[1]] = true
		if _, known := actions[r[3]]; !known {
			return "", fmt.Errorf("cannot explain the action %q of the transition table", r[3])
		}
		if r[0] == r[2] && r[3] == "" {
			continue // an order that only counts later
		}
		same := slices.IndexFunc(results, func(o [4]string) bool { return o[0] == r[0] && o[2] == r[2] && o[3] == r[3] })
		if same < 0 {
			results = append(results, r)
			continue
		}
		results[same][1] += ", " + r[1]
	}
	for _, r := range results {
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", r[0], r[1], r[2], actions[r[3]])
	}
	b.WriteString(`
Any other event changes no state; an order may change the wanted state. When the main process ends before others of its run, the others get TERM at once and KILL half a second
later; then the next state begins. Only services of s6 service directories have finish commands.

| Word | What happens |
|---|---|
`)
	for _, w := range words {
		if used[w.name] {
			fmt.Fprintf(&b, "| %s | %s |\n", w.name, w.meaning)
			delete(used, w.name)
		}
	}
	if len(used) > 0 {
		return "", fmt.Errorf("cannot explain the events %v of the transition table", slices.Sorted(keys(used)))
	}
	b.WriteString(`
## Causes of an exit

Every exit has a cause, and keeps the last 20 lines the process wrote.

| Cause | Meaning |
|---|---|
`)
	for _, d := range causeDocs {
		fmt.Fprintf(&b, "| `%s` | %s |\n", d.value, d.doc)
	}
	return b.String(), nil
}

func keys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
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
