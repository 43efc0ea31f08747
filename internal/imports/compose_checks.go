package imports

import (
	"cmp"
	"strings"
)

// filled returns the text of an entry with its templates replaced. It notes a template that would have to be executed.
func (c *compose) filled(e entry, where string, vars map[string]string) string {
	text, rest := fill(e.text(), vars)
	if rest != "" {
		c.note(c.at(e, where), "has a template that the import does not carry out (%s); write out what it comes to", oneLine(rest))
	}
	return text
}

// inShell returns a command line in the form in which the shell of process-compose gets it.
func (c *compose) inShell(e entry, where string, vars map[string]string) []string {
	line := strings.TrimRight(c.filled(e, where, vars), "\n")
	if !c.raw {
		line = strings.ReplaceAll(line, "$$", "$")
	}
	return append(append([]string{}, c.shell...), line)
}

// probe imports a check in the form of Kubernetes.
func (c *compose) probe(process string, at entry, s *service, kind string, vars map[string]string) {
	k := check{values{"kind": kind, "period": "10s", "timeout": "1s"}, place{c.file, at.line}}
	found := false
	for _, e := range entries(at.node) {
		where := process + "." + at.name + "." + e.name
		switch e.name {
		case "exec":
			for _, part := range entries(e.node) {
				if part.name == "command" {
					k.set("exec.command", c.inShell(part, where, vars))
					found = true
				} else {
					c.note(c.at(part, where+"."+part.name), "a check runs where the service does")
				}
			}
		case "http_get":
			found = true
			c.httpGet(where, e, k, vars)
		case "initial_delay_seconds", "period_seconds", "timeout_seconds":
			time, err := seconds(e.text())
			if err != nil {
				c.note(c.at(e, where), "%v", err)
			}
			key := strings.TrimSuffix(e.name, "_seconds")
			k.set(key, cmp.Or(time, k.text(key)))
		case "success_threshold":
			if kind == "ready" {
				k.set(e.name, e.text())
			}
		case "failure_threshold":
			k.set(e.name, e.text())
		default:
			c.note(c.at(e, where), "hinit has nothing like this setting")
		}
	}
	if !found {
		c.note(c.at(at, process+"."+at.name), "says nothing to look at and is left out")
		return
	}
	s.checks = append(s.checks, k)
	if kind == "ready" && s.text("restart.policy") != "never" {
		c.note(c.at(at, process+"."+at.name), "hinit restarts nothing that is not ready; make it a check of kind alive for that")
	}
}

func (c *compose) httpGet(where string, at entry, k check, vars map[string]string) {
	host, port, path, scheme := "", "80", "/", "http"
	parts := map[string]*string{"host": &host, "port": &port, "num_port": &port, "path": &path, "scheme": &scheme}
	for _, e := range entries(at.node) {
		part, known := parts[e.name]
		switch {
		case known:
			*part = c.filled(e, where+"."+e.name, vars)
		case e.name == "status_code":
			k.set("http.status", e.text())
		case e.name == "headers":
			k.set("http.headers", variables(e.node))
		default:
			c.note(c.at(e, where+"."+e.name), "hinit has nothing like this setting")
		}
	}
	if scheme = strings.ToLower(scheme); scheme != "http" { // package config refuses it with the reason
		k.set("http.url", scheme+"://"+cmp.Or(host, "127.0.0.1")+":"+port+"/"+strings.TrimPrefix(path, "/"))
		return
	}
	if host != "127.0.0.1" {
		k.set("http.host", host)
	}
	k.set("http.port", port)
	k.set("http.path", "/"+strings.TrimPrefix(path, "/"))
}
