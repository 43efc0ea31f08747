package imports

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// filled is a text with its templates filled in. A part that would have to be executed is named.
func (c *compose) filled(e entry, where string, vars map[string]string) string {
	text, rest := fill(e.text(), vars)
	if rest != "" {
		c.note(c.file, e.line, where, "has a template that the import does not carry out (%s); write out what it comes to", oneLine(rest))
	}
	return text
}

// inShell is a command line as the shell of process-compose gets it.
func (c *compose) inShell(e entry, where string, vars map[string]string) []string {
	line := strings.TrimRight(c.filled(e, where, vars), "\n")
	if !c.raw {
		line = strings.ReplaceAll(line, "$$", "$")
	}
	return append(append([]string{}, c.shell...), line)
}

// logSize takes over what of the rotation of a log hinit has.
func (c *compose) logSize(process string, at entry, s *service) {
	for _, e := range entries(at.node) {
		where := process + "." + at.name + "." + e.name
		if e.name != "rotation" {
			c.note(c.file, e.line, where, "%s", otherWay(at.name))
			continue
		}
		for _, r := range entries(e.node) {
			n, err := strconv.Atoi(r.text())
			switch {
			case r.name == "max_size_mb" && err == nil:
				s.output.size = r.text()
			case r.name == "max_backups" && err == nil:
				s.output.archives = r.text()
			case r.name == "max_age_days" && err == nil:
				s.output.age = fmt.Sprintf("%dh", 24*n)
			case r.name == "compress":
				s.output.compressed = map[bool]string{true: "gzip"}[r.isTrue()]
			default:
				c.note(c.file, r.line, where+"."+r.name, "%s", otherWay(at.name))
			}
		}
	}
}

// probe takes over a check as Kubernetes has it.
func (c *compose) probe(process string, at entry, s *service, kind string, vars map[string]string) {
	k := check{kind: kind, period: "10s", timeout: "1s", place: place{c.file, at.line}}
	found := false
	for _, e := range entries(at.node) {
		where := process + "." + at.name + "." + e.name
		switch e.name {
		case "exec":
			for _, part := range entries(e.node) {
				if part.name == "command" {
					k.command, found = c.inShell(part, where, vars), true
				} else {
					c.note(c.file, part.line, where+"."+part.name, "a check runs where the service does")
				}
			}
		case "http_get":
			found = true
			c.httpGet(where, e, &k, vars)
		case "initial_delay_seconds":
			k.delay = c.seconds(c.file, e, where)
		case "period_seconds":
			k.period = cmp.Or(c.seconds(c.file, e, where), k.period)
		case "timeout_seconds":
			k.timeout = cmp.Or(c.seconds(c.file, e, where), k.timeout)
		case "success_threshold":
			if kind == "ready" {
				k.success = e.text()
			}
		case "failure_threshold":
			k.failure = e.text()
		default:
			c.note(c.file, e.line, where, "hinit has nothing like this setting")
		}
	}
	if !found {
		c.note(c.file, at.line, process+"."+at.name, "says nothing to look at and is left out")
		return
	}
	s.checks = append(s.checks, k)
	if kind == "ready" && s.restart.policy != "never" {
		c.note(c.file, at.line, process+"."+at.name, "hinit restarts nothing that is not ready; make it a check of kind alive for that")
	}
}

func (c *compose) httpGet(where string, at entry, k *check, vars map[string]string) {
	host, port, path, scheme := "", "80", "/", "http"
	for _, e := range entries(at.node) {
		switch e.name {
		case "host":
			host = c.filled(e, where+"."+e.name, vars)
		case "port", "num_port":
			port = c.filled(e, where+"."+e.name, vars)
		case "path":
			path = c.filled(e, where+"."+e.name, vars)
		case "status_code":
			k.http = append(k.http, pair{"status", e.text()})
		case "headers":
			k.headers = variables(e.node)
		case "scheme":
			scheme = strings.ToLower(c.filled(e, where+"."+e.name, vars))
		default:
			c.note(c.file, e.line, where+"."+e.name, "hinit has nothing like this setting")
		}
	}
	if scheme != "http" { // which config refuses, with the reason
		k.http = append(k.http, pair{"url", scheme + "://" + cmp.Or(host, "127.0.0.1") + ":" + port + "/" + strings.TrimPrefix(path, "/")})
		return
	}
	if host != "" && host != "127.0.0.1" {
		k.http = append([]pair{{"host", host}}, k.http...)
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	k.http = append([]pair{{"port", port}, {"path", path}}, k.http...)
}
