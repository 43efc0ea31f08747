package config

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	// KanbanName is the name of the service that dispatches the tasks on the task boards. The variable HINIT_KANBAN switches the
	// service on. The service needs no entry in hinit.yaml.
	KanbanName = "kanban"
	// KanbanWorker is the name of the one-shot command that works on one task of a task board. It needs no entry in hinit.yaml.
	KanbanWorker = "kanban-worker"

	kanbanVar = "HINIT_KANBAN"
	// kanbanReadyTimeout limits the time until the service has first read the boards and reports readiness. The gateways wait for
	// this report.
	kanbanReadyTimeout = 30 * time.Second
)

// decodeRuns decodes the commands that a client may run once.
func (l *loader) decodeRuns(d *decoder, n *yaml.Node) {
	c := l.cfg
	nodes := d.namedEntries(n, "runs", "the name %q of a run", checkProfileName)
	if _, ok := nodes[KanbanWorker]; !ok && !l.plain {
		nodes[KanbanWorker] = entry{}
	}
	for _, name := range sortedKeys(nodes) {
		r, e, prefix := NewRun(), nodes[name], "runs."+name+"."
		if name == KanbanWorker && !l.plain {
			r.Command = KanbanWorkerCommand()
			if v, ok := l.lookup("HERMES_BIN"); ok {
				r.Command[0] = v
				c.origins[prefix+"command"] = origin{env: "HERMES_BIN"}
			}
		}
		if e.value != nil {
			d.decodeMapping(e.value, prefix, "", Keys[Run](), &r, nil)
		}
		if r.Command == nil {
			l.problems.reportAtLine(e.line, "cannot use the run %q: %scommand is missing", name, prefix)
		}
		for name, value := range r.Env {
			r.Env[name] = c.ExpandString(value, nil)
		}
		c.Runs[name] = r
	}
}

// NewRun returns a one-shot command with the default settings. The grace period is long enough for a worker of the agent, which
// ends within two seconds after TERM (contract kanban, section 22.1).
func NewRun() Run {
	return Run{Env: map[string]string{}, Limits: map[string]ResourceLimit{}, Grace: 5 * time.Second}
}

// KanbanWorkerCommand is the worker's command line (contract kanban, section 21.1).
func KanbanWorkerCommand() []string {
	return []string{"{agent}", "-p", "{profile}", "--accept-hooks", "{options}", "chat", "-q", "work kanban task {task}"}
}

// ExpandRun is like [Config.Expand] for the command of a run. It also replaces the word {options} with the words in options,
// which it does not expand.
func (c *Config) ExpandRun(command []string, vars map[string]string, options []string) []string {
	at := slices.Index(command, "{"+optionsPlaceholder+"}")
	if at < 0 {
		return c.Expand(command, vars)
	}
	return slices.Concat(c.Expand(command[:at], vars), options, c.Expand(command[at+1:], vars))
}
