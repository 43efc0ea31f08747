package imports

import (
	"cmp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// container takes over a key that only a compose file of Docker has, and reports whether it is one.
func (c *compose) container(e entry, where string, s *service) bool {
	switch e.name {
	case "healthcheck":
		c.healthcheck(e, where, s)
	case "user":
		s.user = e.text()
	case "restart":
		policy, _, _ := strings.Cut(e.text(), ":")
		s.restart.policy = cmp.Or(map[string]string{"always": "always", "unless-stopped": "always", "on-failure": "on-failure"}[policy], "never")
	case "stop_grace_period":
		s.stop.grace = e.text()
	case "stop_signal":
		s.stop.signal = strings.TrimPrefix(e.text(), "SIG")
	default:
		return false
	}
	return true
}

// words are the words of a command, which may be written as one text.
func (c *compose) words(e entry, where string) []string {
	words := items(e.node)
	if e.node.Kind == yaml.ScalarNode {
		var err error
		if words, err = split(e.text()); err != nil {
			c.note(c.file, e.line, where, "cannot be taken apart: %v", err)
		}
	}
	for i, word := range words {
		words[i] = strings.ReplaceAll(word, "$$", "$")
	}
	return words
}

// healthcheck takes over the check of a container as a check of kind ready, which restarts nothing: it needs no start_period.
func (c *compose) healthcheck(at entry, where string, s *service) {
	k := check{kind: "ready", period: "30s", timeout: "30s", failure: "3", place: place{c.file, at.line}}
	for _, e := range entries(at.node) {
		switch e.name {
		case "test":
			k.command = []string{"sh", "-c", e.text()}
			if words := items(e.node); e.node.Kind != yaml.ScalarNode && len(words) > 1 && words[0] == "CMD" {
				k.command = words[1:]
			} else if e.node.Kind != yaml.ScalarNode {
				k.command[2] = strings.Join(words[min(1, len(words)):], " ") // CMD-SHELL, or NONE
			}
		case "interval":
			k.period = e.text()
		case "timeout":
			k.timeout = e.text()
		case "retries":
			k.failure = e.text()
		case "start_period", "start_interval":
		case "disable":
			return
		default:
			c.note(c.file, e.line, where+"."+e.name, "%s", otherWay(e.name))
		}
	}
	if k.command != nil && k.command[len(k.command)-1] != "" {
		s.checks = append(s.checks, k)
	}
}
