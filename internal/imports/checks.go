package imports

import (
	"cmp"
	"slices"
	"strings"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"
)

// apply is [importer.apply] for the keys of a check.
func (k convertCheck) apply(im *importer, list rules, settings ...setting) {
	for _, e := range settings {
		r := list.ruleFor(e)
		if r.nested != nil {
			k.apply(im, r.nested, e.keys()...)
			continue
		}
		im.applyRule(r, e, func(value any) { k.set(r.key, value) })
	}
}

// hasContent reports whether there is something to check: a command, an HTTP request or a TCP connection.
func (k convertCheck) hasContent() bool {
	return lo.SomeBy(lo.Keys(k.values), func(key string) bool {
		group, _, _ := strings.Cut(key, ".")
		return group == "exec" || group == "http" || group == "tcp"
	})
}

// emptyCheckNote is the note about a check without content.
const emptyCheckNote = "checks nothing, and is left out"

// probe imports a readiness_probe or liveness_probe, which process-compose has taken from Kubernetes.
func (c *composeImport) probe(_ *importer, s *service, at setting) {
	kind := map[string]string{"readiness_probe": "ready", "liveness_probe": "alive"}[at.name]
	k := convertCheck{values{"kind": kind, "period": "10s", "timeout": "1s"}, at.place}
	list := rules{
		{name: "exec", nested: rules{{name: "command", key: "exec.command", convertNode: c.shellCommand}, {name: ".*", note: "a check runs where the service does"}}},
		{name: "initial_delay_seconds", key: "initial_delay", convertText: seconds},
		{name: "period_seconds", key: "period", convertText: seconds},
		{name: "timeout_seconds", key: "timeout", convertText: seconds},
		{name: "success_threshold", key: map[string]string{"ready": "success_threshold"}[kind]},
		{name: "failure_threshold", key: "failure_threshold"},
		{name: ".*", note: unknownKeyNote},
	}
	for _, e := range at.keys() {
		if e.name == "http_get" {
			c.httpGet(e, k)
		} else {
			k.apply(c.importer, list, e)
		}
	}
	if !k.hasContent() {
		c.note(at.from, emptyCheckNote)
		return
	}
	s.checks = append(s.checks, k)
	if kind == "ready" && s.text("restart.policy") != "never" {
		c.note(at.from, "hinit restarts nothing that is not ready; make it a check of kind alive for that")
	}
}

func (c *composeImport) httpGet(at setting, k convertCheck) {
	host, port, path, scheme := "", "80", "/", "http"
	parts := map[string]*string{"host": &host, "port": &port, "num_port": &port, "path": &path, "scheme": &scheme}
	list := rules{{name: "status_code", key: "http.status"}, {name: "headers", key: "http.headers", convertNode: variables}, {name: ".*", note: unknownKeyNote}}
	for _, e := range at.keys() {
		if part := parts[e.name]; part != nil {
			*part = c.fillTemplates(e)
		} else {
			k.apply(c.importer, list, e)
		}
	}
	if scheme = strings.ToLower(scheme); scheme != "http" { // package config refuses any other scheme and says why
		k.set("http.url", scheme+"://"+cmp.Or(host, "127.0.0.1")+":"+port+"/"+strings.TrimPrefix(path, "/"))
		return
	}
	if host != "127.0.0.1" {
		k.set("http.host", host)
	}
	k.set("http.port", port)
	k.set("http.path", "/"+strings.TrimPrefix(path, "/"))
}

// commandWords returns the words of a command, which the file has as a list or as a string.
func (c *composeImport) commandWords(e setting) []string {
	if e.node.Kind == yaml.ScalarNode {
		return c.split(e)
	}
	return e.items()
}

// healthcheck imports the healthcheck of a compose file as a check of kind ready. Such a check does not restart the service, so
// it needs no start_period.
func healthcheck(im *importer, s *service, at setting) {
	k := convertCheck{values{"kind": "ready", "period": "30s", "timeout": "30s", "failure_threshold": "3"}, at.place}
	for _, e := range at.keys() {
		switch e.name {
		case "disable":
			if isTrue(e.value) {
				return
			}
		case "test":
			command := []string{"sh", "-c", e.value}
			if words := e.items(); e.node.Kind != yaml.ScalarNode && len(words) > 1 && words[0] == "CMD" {
				command = words[1:]
			} else if e.node.Kind != yaml.ScalarNode {
				command[2] = strings.Join(words[min(1, len(words)):], " ") // the words after CMD-SHELL or NONE
			}
			if !slices.Equal(command, []string{"sh", "-c", ""}) {
				k.set("exec.command", command)
			}
		default:
			k.apply(im, healthRules, e)
		}
	}
	if k.hasContent() {
		s.checks = append(s.checks, k)
	}
}

var healthRules = rules{
	{name: "interval", key: "period"},
	{name: "timeout", key: "timeout"},
	{name: "retries", key: "failure_threshold"},
	{name: "start_period|start_interval"},
}
