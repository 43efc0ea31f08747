package config

import (
	"slices"
	"strings"
	"testing"
)

func TestKanbanIsEnabledByItsVariable(t *testing.T) {
	c, err := Load(Options{Content: []byte("{}"), Env: envLookup(map[string]string{"HINIT_KANBAN": "1", "HERMES_BIN": "/opt/h"})})
	if err != nil {
		t.Fatal(err)
	}
	s := c.Services[KanbanName]
	if !s.Enabled || !slices.Equal(s.Command, []string{"hinit-kanban", "serve"}) || s.User != c.Agent.User {
		t.Errorf("the service is %+v", s)
	}
	const dispatchVar = "HERMES_KANBAN_DISPATCH_IN_GATEWAY"
	if value, set := c.Agent.Env[dispatchVar]; set {
		t.Errorf("gateways get %s=%q", dispatchVar, value)
	}
	if got := c.Runs[KanbanWorker].Command[0]; got != "/opt/h" {
		t.Errorf("a worker is %q", got)
	}
}

// The command of a run in the file must win over the environment variable.
func TestTheFileWinsOverTheVariableOfAWorkersProgram(t *testing.T) {
	c, err := Load(Options{Content: []byte("runs: {kanban-worker: {command: [mine]}}"), Env: envLookup(map[string]string{"HERMES_BIN": "/opt/h"})})
	if err != nil || !slices.Equal(c.Runs[KanbanWorker].Command, []string{"mine"}) {
		t.Errorf("a worker is %v, %v", c, err)
	}
}

func TestKanbanIsOffByDefault(t *testing.T) {
	for _, vars := range []map[string]string{nil, {"HINIT_KANBAN": ""}, {"HINIT_KANBAN": "0"}} {
		c, err := Load(Options{Content: []byte("{}"), Env: envLookup(vars)})
		if err != nil {
			t.Fatal(err)
		}
		if c.Services[KanbanName].Enabled {
			t.Errorf("with %v: %+v", vars, c.Services[KanbanName])
		}
	}
}

func TestOptionsTakeThePlaceOfTheirWord(t *testing.T) {
	c := DefaultConfig()
	vars := map[string]string{"profile": "coder", "task": "t_1"}
	got := c.ExpandRun(KanbanWorkerCommand(), vars, []string{"--skills", "{agent}"})
	want := []string{c.Agent.Binary, "-p", "coder", "--accept-hooks", "--skills", "{agent}", "chat", "-q", "work kanban task t_1"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := c.ExpandRun([]string{"x", "{task}"}, vars, []string{"y"}); !slices.Equal(got, []string{"x", "t_1"}) {
		t.Errorf("without the word: %q", got)
	}
}

func TestBadRuns(t *testing.T) {
	for text, want := range map[string]string{
		"runs: {a: {}}":                        "runs.a.command is missing",
		"runs: {A: {command: [x]}}":            `cannot use the name "A" of a run`,
		"runs: {a: {command: [x, '{to}']}}":    "unknown placeholder {to}",
		"runs: {a: {command: [x], grace: 0s}}": "runs.a.grace",
		"runs: {a: {command: [x], user: y}}":   "unknown key",
	} {
		_, err := Load(Options{Content: []byte(text), Env: envLookup(nil)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
