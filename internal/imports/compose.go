package imports

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"
)

// composeImport is the import of one process-compose.yaml or of one compose file.
type composeImport struct {
	*importer
	shell           []string
	isDockerCompose bool
	env             []envVar
	dotenv          []string          // the .env in the file's directory
	vars            map[string]string // values for templates, including the variables of the process that is being imported
	dependencies    []dependency
	processRules    rules // rules for the settings of one process
}

// dependency is a dependency of process-compose: a process starts only when another process meets a condition.
type dependency struct {
	service            *service
	target, condition  string
	optional, restarts bool // the keys of compose files "required: false" and "restart: true"
	place              place
}

// importCompose reads process-compose.yaml, or Docker's compose file, which has almost the same keys.
func (im *importer) importCompose(path string) error {
	keys, err := readYAML(path)
	if err != nil {
		return err
	}
	c := &composeImport{importer: im, shell: []string{"bash", "-c"}, vars: make(map[string]string)}
	c.processRules = slices.Concat(processRules, rules{
		{name: "working_dir", key: "cwd", convertNode: func(e setting) any { return absolutePath(path, c.fillTemplates(e)) }},
		{name: "description", convert: func(_ *importer, s *service, e setting) { s.comment = commentLine(c.fillTemplates(e)) }},
		{name: "shutdown", nested: append(rules{{name: "command", key: "stop_command", convertNode: c.shellCommand}}, parseRules("compose shutdown")...)},
		{name: "depends_on", key: "needs", convert: c.importDependsOn},
		{name: "(readiness|liveness)_probe", convert: c.importProbe},
		{name: "environment", key: "env", convert: func(_ *importer, s *service, e setting) { s.addVariables(c.readEnvironment(e)...) }},
		{name: "env_file", key: "env_file", convert: func(_ *importer, s *service, e setting) {
			for _, file := range e.elements() { // an element is a text or, in a compose file, a mapping
				parts := file.scalarsByName()
				name, optional := strings.CutPrefix(cmp.Or(parts["path"], file.value), "-")
				prefix := lo.Ternary(optional || isFalse(parts["required"]), "-", "")
				s.set("env_file", append(s.list("env_file"), prefix+absolutePath(path, name)))
			}
		}},
	})
	im.defaults.set("stop.grace", "10s") // process-compose's default for shutdown.timeout_seconds
	top := lo.KeyBy(keys, func(e setting) string { return e.name })
	c.isDockerCompose = lo.HasKey(top, "services")
	expands := !isTrue(top["disable_env_expansion"].value)
	var processes []setting
	for _, e := range keys {
		if expands {
			c.interpolate(path, e.node)
		}
		switch e.name {
		case "processes", "services":
			e.where = ""
			processes = e.keys()
		case "environment":
			c.env = c.readEnvironment(e)
		case "shell":
			words := map[string]*string{"shell_command": &c.shell[0], "shell_argument": &c.shell[1]}
			for _, k := range e.keys() {
				if word := words[k.name]; word != nil {
					*word = k.value
				} else {
					im.addNote(k.sourceRef, unknownKeyNote)
				}
			}
		case "vars":
			c.addVars(e)
		default:
			e.value = ""
			im.apply(fileRules, nil, e)
		}
	}
	if dotenv := absolutePath(path, ".env"); !c.isDockerCompose && exists(dotenv) {
		c.dotenv = []string{dotenv}
		c.addNote(sourceRef{place: place{file: dotenv}}, "each service reads it (env_file); what it sets is filled in by the shell of a command, and not in other settings")
	}
	for _, p := range processes {
		c.readProcess(p)
	}
	for _, w := range c.dependencies {
		c.addDependency(w)
	}
	if slices.ContainsFunc(im.services, func(s *service) bool { return s.text("restart.max_restarts") != "" }) {
		im.defaults.set("restart.max_restarts_window", "8760h") // the other supervisor counts restarts without a time limit
	}
	return nil
}

// unknownKeyNote is the note about a setting without a rule.
const unknownKeyNote = "hinit has nothing like this setting"

// fileRules are the rules for the settings at the top level of a file.
var fileRules = parseRules("compose")

func (c *composeImport) addVars(e setting) {
	maps.Copy(c.vars, lo.SliceToMap(e.variables(), func(v envVar) (string, string) { return v.name, v.value }))
}

func (c *composeImport) importDependsOn(_ *importer, s *service, e setting) {
	if e.node.Kind != yaml.MappingNode { // a list, which only Docker's compose files allow
		for _, name := range e.scalars() {
			c.dependencies = append(c.dependencies, dependency{service: s, target: name, condition: "process_started", place: e.place})
		}
	}
	for _, d := range e.keys() {
		parts := d.scalarsByName()
		condition := cmp.Or(parts["condition"], d.value, "process_started")
		c.dependencies = append(c.dependencies, dependency{s, d.name, condition, isFalse(parts["required"]), isTrue(parts["restart"]), d.place})
	}
}

// variableOrDollar matches the parts of a text that Docker and process-compose replace: $$, and references to variables.
var variableOrDollar = regexp.MustCompile(`\$(\$|\{[^}]*\}|[A-Za-z_][A-Za-z0-9_]*)`)

// interpolate replaces each $$ by $ in the texts below n. In a compose file it adds a note for each reference to a variable. In
// a process-compose.yaml, most references are in commands, where the shell replaces them, and environment adds notes about the
// others.
func (c *composeImport) interpolate(file string, n *yaml.Node) {
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") { // the value has a custom tag, such as !reset
		c.addNote(sourceRef{place{file, n.Line}, n.Tag}, "the tag has no meaning here; import the other file, with what this one changes in it")
	}
	n.Value = variableOrDollar.ReplaceAllStringFunc(n.Value, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if c.isDockerCompose {
			c.addNote(sourceRef{place{file, n.Line}, found}, "stays as it is written; write the value that Docker replaces it by into hinit.yaml")
		}
		return found
	})
	for _, child := range n.Content {
		c.interpolate(file, child)
	}
}

// readProcess imports one process. Each replica of the process becomes a service.
func (c *composeImport) readProcess(p setting) {
	shared := c.vars
	defer func() { c.vars = shared }()
	c.vars = maps.Clone(shared)
	replicas, keys := 1, p.keys()
	for _, e := range keys {
		switch e.name {
		case "replicas":
			n, err := strconv.Atoi(e.value)
			if err != nil || n < 1 {
				c.addNote(e.sourceRef, "%q is no number from 1; one is made", e.value)
				n = 1
			}
			replicas = n
		case "vars":
			c.addVars(e)
		}
	}
	c.addReplicas(replicas, func(n int) {
		name := p.name
		if replicas > 1 {
			name = fmt.Sprintf("%s-%d", p.name, n)
		}
		s := c.addService(p.place, name)
		s.group = p.name
		c.vars["PC_REPLICA_NUM"], c.vars["PC_PROC_NAME"] = strconv.Itoa(n), p.name
		c.importProcessKeys(p, keys, s)
		own, _ := s.values["env"].([]envVar)
		for _, name := range []string{"PC_REPLICA_NUM", "PC_PROC_NAME"} {
			if strings.Contains(strings.Join(s.list("command"), " "), name) || replicas > 1 && name == "PC_REPLICA_NUM" {
				own = append([]envVar{{name, c.vars[name]}}, own...)
			}
		}
		s.set("env", own)
	})
}

// processRules are the rules for the settings of a process that can be imported one by one.
var processRules = slices.Concat(rules{
	{name: "namespace", key: "group", convertText: func(value string) (string, error) { return serviceName(value), nil }},
	{name: "success_exit_codes", key: "success_codes", convertNode: func(e setting) any { return successExitCodes(e.scalars()) }},
	{name: "availability", nested: rules{
		{name: "restart", key: "restart.policy", convertText: restartPolicyOf},
		{name: "backoff_seconds", convert: constantRestartDelay(parseSeconds)},
		{name: "max_restarts", key: "restart.max_restarts"},
		{name: "exit_on_end", matches: isTrue, note: "hinit doesn't end when a service does; make it the container's CMD for that"},
	}},
	{name: "schedule", convert: func(im *importer, s *service, e setting) {
		if im.apply(parseRules("compose schedule"), s, e.keys()...); s.text("schedule.cron") == "" {
			s.set("once", "boot")
		}
	}},
	{name: "log_configuration", nested: rules{{name: "rotation", nested: parseRules("compose rotation")}, {name: ".*", note: logKeysNote}}},
	{name: "log_location", convert: func(im *importer, s *service, e setting) {
		s.set("log", "true")
		im.addNote(e.sourceRef, "hinit writes to logs/%s/current below logs.dir, not to %s", s.name, e.value)
	}},
	{name: "ready_log_line", convert: func(_ *importer, s *service, e setting) {
		k := newCheck(e.place, values{"kind": "ready", "log.contains": e.node.Value})
		if regexp.QuoteMeta(e.node.Value) != e.node.Value {
			k.values = values{"kind": "ready", "log.matches": e.node.Value}
		}
		s.checks = append(s.checks, k)
	}},
	{name: "restart", key: "restart.policy", convert: func(_ *importer, s *service, e setting) {
		policy, most, _ := strings.Cut(e.value, ":")
		s.set("restart.policy", cmp.Or(map[string]string{"always": "always", "unless-stopped": "always", "on-failure": "on-failure"}[policy], "never"))
		s.set("restart.max_restarts", most)
	}},
	{name: "stop_signal", key: "stop.signal", convertText: func(value string) (string, error) { return strings.TrimPrefix(value, "SIG"), nil }},
	{name: "healthcheck", convert: importHealthcheck},
}, parseRules("compose process"))

// dayAndWeekday matches a schedule with a day of the month and a weekday, instead of "*", "?" or "*/1".
var dayAndWeekday = regexp.MustCompile(`(^|\s)([^\s*?]\S*|[*?]/([2-9]|\d\d)\S*)\s+\S+\s+([^\s*?]\S*|[*?]/([2-9]|\d\d)\S*)$`)

// checkCronDays returns a schedule unchanged. The error says that process-compose, like cron, runs a schedule with a day of the
// month and a weekday on either of them.
func checkCronDays(cron string) (string, error) {
	if dayAndWeekday.MatchString(cron) {
		return cron, errors.New("hinit runs it only on days that are both a day of the month and a weekday of it; write a task for each")
	}
	return cron, nil
}

// logKeysNote is the note about a setting of a log without a rule.
const logKeysNote = "hinit has the keys of logs for size, number, age and compression, and logs.console for the format"

// restartPolicyOf converts availability.restart to a restart policy.
func restartPolicyOf(value string) (string, error) {
	policy, known := map[string]string{"always": "always", "on_failure": "on-failure", "no": "never", "false": "never"}[strings.ToLower(value)]
	switch {
	case known:
		return policy, nil
	case value == "exit_on_failure":
		return "never", errors.New("hinit doesn't end when a service fails; make it the container's CMD for that")
	}
	return "never", fmt.Errorf("%q is not known; it is not restarted", oneLine(value))
}

func (c *composeImport) importProcessKeys(p setting, keys []setting, s *service) {
	s.addVariables(c.env...)
	s.set("env_file", c.dotenv)
	s.set("restart.policy", "never")
	var entrypoint, arguments []string
	for _, e := range keys {
		switch {
		case !c.isDockerCompose && e.node.Kind != yaml.ScalarNode && slices.Contains([]string{"command", "working_dir", "ready_log_line", "disabled"}, e.name):
			c.addNote(e.sourceRef, "is no text, and is left out")
		case e.name == "entrypoint":
			entrypoint = c.commandWords(e)
		case e.name == "args":
			arguments = e.scalars()
		case e.name == "command" && c.isDockerCompose:
			s.recordPlace("command", e.place)
			arguments = c.commandWords(e)
		case e.name == "command":
			s.setFrom("command", e.place, c.shellCommand(e))
		default:
			c.apply(c.processRules, s, e)
		}
	}
	if entrypoint != nil && s.values["command"] == nil || c.isDockerCompose { // process-compose prefers command to entrypoint
		s.set("command", append(entrypoint, arguments...))
	}
	if s.isTask() {
		turnIntoTask(s)
	}
	c.dropWithoutCommand(s, p.sourceRef)
}

// turnIntoTask turns a service that is never restarted into a task. The task runs at boot unless it has a schedule.
func turnIntoTask(s *service) {
	if s.text("restart.policy") == "never" {
		s.set("restart.policy", "")
		if s.text("schedule.cron") == "" {
			s.set("once", "boot")
		}
	}
}

// readEnvironment reads environment variables. It adds a note for each reference to another variable, because process-compose
// replaces references, and hinit does not.
func (c *composeImport) readEnvironment(e setting) []envVar {
	list := e.variables()
	for _, v := range list {
		if !c.isDockerCompose && variableReference.MatchString(v.value) {
			c.addNote(e.sourceRef, "%s refers to a variable (%s), which stays as it is written", v.name, v.value)
		}
	}
	return list
}

// addDependency imports one dependency. Call it only when all processes are known.
func (c *composeImport) addDependency(w dependency) {
	until, known := map[string]string{
		"process_started": "started", "process_healthy": "ready", "process_log_ready": "ready",
		"process_completed_successfully": "done", "process_completed": "done",
		"service_started": "started", "service_healthy": "ready", "service_completed_successfully": "done",
	}[w.condition]
	at := sourceRef{w.place, w.service.oldName + ".depends_on." + w.target}
	if !known {
		c.addNote(at, "the condition %q is not known; the service waits until %s has started", w.condition, w.target)
		until = "started"
	}
	if w.condition == "process_completed" {
		c.addNote(at, "the service waits until %s has ended with exit code 0; with another exit code it keeps waiting", w.target)
	}
	found := c.findServices(w.target)
	if len(found) == 0 {
		c.addNote(at, "there is no such process")
	}
	if w.target == w.service.oldName {
		c.addNote(at, "it would wait for itself; the need is left out")
	}
	for _, to := range found {
		if strings.Contains(w.condition, "_completed") {
			turnIntoTask(to)
		}
		w.service.addNeed(need{name: to.name, until: until, optional: w.optional, place: w.place})
		if w.restarts {
			w.service.setFrom("restart_on", w.place, append(w.service.list("restart_on"), to.name))
		}
	}
}

// fillTemplates replaces the templates in the text of a setting. A template that would need execution gets a note.
func (c *composeImport) fillTemplates(e setting) string {
	text, rest := fillTemplates(e.value, c.vars)
	if rest != "" {
		c.addNote(e.sourceRef, "has a template that the import does not carry out (%s); write out what it comes to", oneLine(rest))
	}
	return text
}

func (c *composeImport) shellCommand(e setting) any {
	return append(slices.Clone(c.shell), strings.TrimRight(c.fillTemplates(e), "\n"))
}
