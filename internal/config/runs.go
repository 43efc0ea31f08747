package config

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	// KanbanName is the service that dispatches the tasks of the board. It exists without being written down where its variable is set.
	KanbanName = "kanban"
	// KanbanWorker is the run that works on one task. It exists without being written down.
	KanbanWorker = "kanban-worker"

	kanbanVar = "HINIT_KANBAN"
	// kanbanStart is how long the service may take to its first look at the boards. The gateways wait for that.
	kanbanStart = 30 * time.Second
)

// runs builds the commands that a client may have run once.
func (l *loader) runs(d *decoder, n *yaml.Node) {
	c := l.cfg
	nodes := d.named(n, "runs", "the name %q of a run", checkProfileName)
	if _, ok := nodes[KanbanWorker]; !ok && !l.plain {
		nodes[KanbanWorker] = entry{}
	}
	fields := runFields()
	for _, name := range sortedKeys(nodes) {
		r, e, prefix := newRun(), nodes[name], "runs."+name+"."
		if name == KanbanWorker && !l.plain {
			r.Command = kanbanWorker()
			if v, ok := l.lookup("HERMES_BIN"); ok {
				r.Command[0] = v
				c.origins[prefix+"command"] = origin{env: "HERMES_BIN"}
			}
		}
		if e.value != nil {
			decodeFields(d, e.value, prefix, "", fields, &r, nil)
		}
		if r.Command == nil {
			l.problems.at(e.line, "cannot use the run %q: %scommand is missing", name, prefix)
		}
		for name, value := range r.Env {
			r.Env[name] = c.ExpandString(value, nil)
		}
		c.Runs[name] = r
	}
}

// newRun returns a run with the defaults. A worker of the agent gives up within two seconds of TERM (contract
// kanban, section 22.1).
func newRun() Run {
	return Run{Env: map[string]string{}, Limits: map[string]ResourceLimit{}, Grace: 5 * time.Second}
}

// kanbanWorker is the worker's command line (contract kanban, section 21.1).
func kanbanWorker() []string {
	return []string{"{agent}", "-p", "{profile}", "--accept-hooks", "{options}", "chat", "-q", "work kanban task {task}"}
}

// ExpandRun is [Config.Expand] for the command of a run: the word {options} is replaced by options, which are not expanded.
func (c *Config) ExpandRun(command []string, vars map[string]string, options []string) []string {
	at := slices.Index(command, "{"+holeOptions+"}")
	if at < 0 {
		return c.Expand(command, vars)
	}
	return slices.Concat(c.Expand(command[:at], vars), options, c.Expand(command[at+1:], vars))
}
