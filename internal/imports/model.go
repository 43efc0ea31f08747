package imports

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// service is a service of hinit.yaml. A zero value is not written.
type service struct {
	name   string
	was    string                        // what the other supervisor calls it
	group  string                        // and several processes of one program together
	people struct{ about, group string } // what it is, and what they name it by together with others
	origin

	command  []string
	disabled bool
	user     string
	cwd      string
	env      []pair
	envFiles []string
	umask    string
	output   output
	task     task
	needs    []need
	checks   []check
	restart  restart
	stop     struct {
		signal, grace string
		command       []string
	}
	notify *yaml.Node // how it says that it is ready
}

// place is where something stands in the other supervisor's configuration.
type place struct {
	file string
	line int
}

// origin is where a service comes from.
type origin struct {
	place place
	from  map[string]place // each key
	left  map[string]bool  // keys that hinit.yaml can't have
}

// keysOf tells which key of hinit.yaml a key of another supervisor becomes.
var keysOf = map[string]string{
	"command": "command", "entrypoint": "command", "args": "command",
	"working_dir": "cwd", "working-dir": "cwd", "directory": "cwd",
	"environment": "env", "env_file": "env_file", "user": "user", "user-id": "user", "group": "user", "group-id": "user", "umask": "umask",
	"depends_on": "needs", "after": "needs", "requires": "needs", "before": "needs", "priority": "needs",
	"availability": "restart", "autorestart": "restart", "startretries": "restart", "on-success": "restart", "on-failure": "restart",
	"backoff-delay": "restart", "backoff-factor": "restart", "backoff-limit": "restart",
	"namespace": "group", "exitcodes": "success_codes", "success_exit_codes": "success_codes",
	"shutdown": "stop", "stopsignal": "stop", "stopwaitsecs": "stop", "kill-delay": "stop",
	"schedule": "schedule", "stdout_logfile_maxbytes": "logs", "stdout_logfile_backups": "logs", "log_configuration": "logs",
}

// came notes where a key comes from, by the other supervisor's name of it.
func (s *service) came(key, file string, line int) {
	if _, known := s.from[keysOf[key]]; !known && keysOf[key] != "" {
		s.from[keysOf[key]] = place{file, line}
	}
}

// output is where a service's output goes.
type output struct {
	log                             bool
	size, archives, age, compressed string // the size in MB
}

// task says when a service that ends by itself runs.
type task struct{ once, cron, timezone string }

type pair struct{ name, value string }

type need struct {
	name, until string
	optional    bool
	place       place
}

type restart struct {
	successes                                 []string // the exit codes besides 0 that are no failure
	policy, initial, max, factor, maxRestarts string
}

// check is a health check.
type check struct {
	kind, name             string
	http, tcp              []pair // with the keys of hinit.yaml
	headers                []pair
	command                []string
	log                    string // a text of a line that has to come
	logMatches             string // or what such a line matches
	period, timeout, delay string
	success, failure       string
	onFailure              string
	place                  place
}

// key is a key with its value, which is left out when it is empty.
type key struct {
	name  string
	value *yaml.Node
}

func mapping(flow bool, keys ...key) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	if flow {
		n.Style = yaml.FlowStyle
	}
	for _, k := range keys {
		if k.value != nil {
			n.Content = append(n.Content, text(k.name), k.value)
		}
	}
	if len(n.Content) == 0 {
		return nil
	}
	return n
}

// text is a scalar that YAML must not take for a number or a boolean.
func text(value string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(value)
	return n
}

// scalar is a scalar as it is: a number, a duration, true. "" is left out.
func scalar(value string) *yaml.Node {
	if value == "" {
		return nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: value}
}

func optional(value string) *yaml.Node {
	if value == "" {
		return nil
	}
	return text(value)
}

func truth(yes bool) *yaml.Node {
	return scalar(map[bool]string{true: "true"}[yes])
}

func sequence(flow bool, items ...*yaml.Node) *yaml.Node {
	if len(items) == 0 {
		return nil
	}
	n := &yaml.Node{Kind: yaml.SequenceNode, Content: items}
	if flow {
		n.Style = yaml.FlowStyle
	}
	return n
}

func texts(values []string) (nodes []*yaml.Node) {
	for _, v := range values {
		nodes = append(nodes, text(literal(v)))
	}
	return nodes
}

func scalars(values []string) (nodes []*yaml.Node) {
	for _, v := range values {
		nodes = append(nodes, scalar(v))
	}
	return nodes
}

func pairs(list []pair) *yaml.Node {
	keys := make([]key, 0, len(list))
	at := make(map[string]int)
	for _, p := range list {
		if i, again := at[p.name]; again { // the last one wins
			keys[i].value = text(literal(p.value))
			continue
		}
		at[p.name] = len(keys)
		keys = append(keys, key{p.name, text(literal(p.value))})
	}
	return mapping(false, keys...)
}

// hole is what hinit would take for a placeholder.
var hole = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(\$?)\{([a-z_]+)\}`) })

// literal writes a text so that hinit takes it as it is.
func literal(value string) string {
	return hole().ReplaceAllStringFunc(value, func(m string) string {
		if m[0] == '$' {
			return m
		}
		return "{" + m + "}"
	})
}

// yaml writes the configuration.
func (im *importer) yaml(from, format string) ([]byte, error) {
	d := &im.defaults
	services := make([]key, 0, len(im.services))
	for _, s := range im.services {
		services = append(services, key{s.name, s.node()})
	}
	list := mapping(false, services...)
	for i, s := range im.services {
		list.Content[2*i].HeadComment = s.people.about
	}
	root := mapping(false,
		key{"restart", mapping(true, key{"policy", scalar(d.restart.policy)}, key{"initial", scalar(d.restart.initial)}, key{"factor", scalar(d.restart.factor)}, key{"max", scalar(d.restart.max)})},
		key{"stop", mapping(true, key{"grace", scalar(d.grace)})},
		key{"services", list},
	)
	root.HeadComment = fmt.Sprintf("From %s (%s), by hinit import. Try it with: hinit run -c THIS_FILE", strings.Join(strings.Fields(from), " "), format)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

func (s *service) node() *yaml.Node {
	var needs, checks []*yaml.Node
	for _, n := range s.needs {
		if n.until == "" && !n.optional {
			needs = append(needs, text(n.name))
			continue
		}
		needs = append(needs, mapping(true, key{"name", text(n.name)}, key{"until", scalar(n.until)}, key{"optional", truth(n.optional)}))
	}
	for _, c := range s.checks {
		checks = append(checks, c.node())
	}
	keys := []key{
		{"command", sequence(true, texts(s.command)...)},
		{"enabled", scalar(map[bool]string{true: "false"}[s.disabled])},
		{"group", optional(s.people.group)},
		{"user", optional(s.user)},
		{"cwd", optional(literal(s.cwd))},
		{"env", pairs(s.env)},
		{"env_file", sequence(true, texts(s.envFiles)...)},
		{"umask", optional(s.umask)},
		{"log", truth(s.output.log)},
		{"logs", mapping(true, key{"max_size_mb", scalar(s.output.size)}, key{"archives", scalar(s.output.archives)}, key{"max_age", scalar(s.output.age)},
			key{"compress", scalar(s.output.compressed)})},
		{"once", scalar(s.task.once)},
		{"schedule", mapping(true, key{"cron", optional(s.task.cron)}, key{"timezone", optional(s.task.timezone)})},
		{"notify", s.notify},
		{"needs", sequence(true, needs...)},
		{"checks", sequence(false, checks...)},
		{"restart", mapping(true, key{"policy", scalar(s.restart.policy)}, key{"max_restarts", scalar(s.restart.maxRestarts)},
			key{"initial", scalar(s.restart.initial)}, key{"factor", scalar(s.restart.factor)}, key{"max", scalar(s.restart.max)})},
		{"stop", mapping(true, key{"signal", scalar(s.stop.signal)}, key{"grace", scalar(s.stop.grace)})},
		{"stop_command", sequence(true, texts(s.stop.command)...)},
		{"success_codes", sequence(true, scalars(s.restart.successes)...)},
	}
	return mapping(false, slices.DeleteFunc(keys, func(k key) bool { return s.left[k.name] })...)
}

func (c check) node() *yaml.Node {
	flat := func(list []pair) (keys []key) {
		for _, p := range list {
			keys = append(keys, key{p.name, optional(literal(p.value))})
		}
		return keys
	}
	var command *yaml.Node
	if c.command != nil {
		command = mapping(true, key{"command", sequence(true, texts(c.command)...)})
	}
	return mapping(false,
		key{"kind", scalar(c.kind)}, key{"name", optional(c.name)},
		key{"http", mapping(false, append(flat(c.http), key{"headers", pairs(c.headers)})...)}, key{"tcp", mapping(true, flat(c.tcp)...)}, key{"exec", command},
		key{"log", mapping(true, key{"contains", optional(c.log)}, key{"matches", optional(c.logMatches)})},
		key{"initial_delay", scalar(c.delay)}, key{"period", scalar(c.period)}, key{"timeout", scalar(c.timeout)},
		key{"success_threshold", scalar(c.success)}, key{"failure_threshold", scalar(c.failure)}, key{"on_failure", scalar(c.onFailure)},
	)
}

// needs adds what a service waits for, once each.
func (s *service) wait(n need) {
	for _, have := range s.needs {
		if have.name == n.name {
			return
		}
	}
	if n.name != s.name {
		s.needs = append(s.needs, n)
	}
}

// comment makes one comment of what a text says for people.
func comment(texts ...string) string {
	printable := func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}
	var lines []string
	for _, text := range texts {
		for line := range strings.Lines(text) {
			if line = strings.Map(printable, strings.Join(strings.Fields(line), " ")); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// seconds is a number of seconds as a duration; "" when it is none or not positive.
func seconds(value string) string {
	n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || n <= 0 || n > 1e8 {
		return ""
	}
	return durationText(time.Duration(n * float64(time.Second)))
}

// durationText writes a duration without what is zero in it.
func durationText(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

var signals = []string{"TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"}

// signalName finds a signal by its name or its number; ok is false for one that hinit does not send.
func signalName(value string) (name string, ok bool) {
	name = strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(value)), "SIG")
	if byNumber, is := map[string]string{"15": "TERM", "2": "INT", "1": "HUP", "3": "QUIT", "10": "USR1", "12": "USR2", "9": "KILL"}[name]; is {
		name = byNumber
	}
	return name, slices.Contains(signals, name)
}
