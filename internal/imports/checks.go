package imports

import (
	"cmp"
	"slices"
	"strings"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"
)

// newCheck returns a health check with the given keys of hinit.yaml. It is a service value, because [importer.apply] sets the
// keys of services.
func newCheck(at place, keys values) *service {
	return &service{values: keys, place: at, places: make(map[string]place)}
}

// addCheck adds the check k to a service. A check without command, HTTP request or TCP connection is left out with a note.
func (im *importer) addCheck(s, k *service, at sourceRef) (added bool) {
	added = lo.SomeBy(lo.Keys(k.values), func(key string) bool {
		group, _, _ := strings.Cut(key, ".")
		return group == "exec" || group == "http" || group == "tcp"
	})
	if !added {
		im.addNote(at, "checks nothing, and is left out")
		return false
	}
	s.checks = append(s.checks, k)
	return true
}

// importProbe imports a readiness_probe or a liveness_probe. process-compose has both from Kubernetes.
func (c *composeImport) importProbe(_ *importer, s *service, at setting) {
	kind := map[string]string{"readiness_probe": "ready", "liveness_probe": "alive"}[at.name]
	k := newCheck(at.place, values{"kind": kind, "period": "10s", "timeout": "1s"})
	list := slices.Concat(rules{
		{name: "exec", nested: rules{{name: "command", key: "exec.command", convertNode: c.shellCommand}, {name: ".*", note: "a check runs where the service does"}}},
		{name: "success_threshold", key: map[string]string{"ready": "success_threshold"}[kind]},
	}, parseRules("compose probe"))
	for _, e := range at.keys() {
		if e.name == "http_get" {
			c.importHTTPGet(e, k)
		} else {
			c.apply(list, k, e)
		}
	}
	if c.addCheck(s, k, at.sourceRef) && kind == "ready" && s.text("restart.policy") != "never" {
		c.addNote(at.sourceRef, "hinit restarts nothing that is not ready; make it a check of kind alive for that")
	}
}

func (c *composeImport) importHTTPGet(at setting, k *service) {
	host, port, path, scheme := "", "80", "/", "http"
	parts := map[string]*string{"host": &host, "port": &port, "num_port": &port, "path": &path, "scheme": &scheme}
	list := rules{{name: "status_code", key: "http.status"}, {name: "headers", key: "http.headers", convertNode: variables}, {name: ".*", note: unknownKeyNote}}
	for _, e := range at.keys() {
		if part := parts[e.name]; part != nil {
			*part = c.fillTemplates(e)
		} else {
			c.apply(list, k, e)
		}
	}
	if scheme = strings.ToLower(scheme); scheme != "http" { // package config refuses any other scheme with a reason
		k.set("http.url", scheme+"://"+cmp.Or(host, "127.0.0.1")+":"+port+"/"+strings.TrimPrefix(path, "/"))
		return
	}
	if host != "127.0.0.1" {
		k.set("http.host", host)
	}
	k.set("http.port", port)
	k.set("http.path", "/"+strings.TrimPrefix(path, "/"))
}

func (c *composeImport) commandWords(e setting) []string {
	if e.node.Kind == yaml.ScalarNode {
		return c.splitSetting(e)
	}
	return e.scalars()
}

// importHealthcheck imports the healthcheck of a compose file as a check of the kind ready. A failed ready check does not
// restart the service, so start_period is not needed.
func importHealthcheck(im *importer, s *service, at setting) {
	k := newCheck(at.place, values{"kind": "ready", "period": "30s", "timeout": "30s", "failure_threshold": "3"})
	for _, e := range at.keys() {
		switch e.name {
		case "disable":
			if isTrue(e.value) {
				return
			}
		case "test":
			command := []string{"sh", "-c", e.value}
			if words := e.scalars(); e.node.Kind != yaml.ScalarNode && len(words) > 1 && words[0] == "CMD" {
				command = words[1:]
			} else if e.node.Kind != yaml.ScalarNode {
				command[2] = strings.Join(words[min(1, len(words)):], " ") // the words after CMD-SHELL or NONE
			}
			if !slices.Equal(command, []string{"sh", "-c", ""}) {
				k.set("exec.command", command)
			}
		default:
			im.apply(healthRules, k, e)
		}
	}
	if len(k.list("exec.command")) > 0 {
		s.checks = append(s.checks, k)
	}
}

var healthRules = parseRules("compose healthcheck")
