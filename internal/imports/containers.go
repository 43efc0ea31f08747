package imports

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// words returns the words of a command, which may be written as one text.
func (c *compose) words(e entry, where string) []string {
	words := items(e.node)
	if e.node.Kind == yaml.ScalarNode {
		var err error
		if words, err = split(e.text(), shellEscape); err != nil {
			c.note(c.at(e, where), "cannot be taken apart: %v", err)
		}
	}
	for i, word := range words {
		words[i] = strings.ReplaceAll(word, "$$", "$")
	}
	return words
}

// healthcheck imports the check of a container as a check of kind ready. Such a check restarts nothing, so it needs no start_period.
func (c *compose) healthcheck(at entry, where string, s *service) {
	k := check{values{"kind": "ready", "period": "30s", "timeout": "30s", "failure_threshold": "3"}, place{c.file, at.line}}
	var command []string
	for _, e := range entries(at.node) {
		switch e.name {
		case "test":
			command = []string{"sh", "-c", e.text()}
			if words := items(e.node); e.node.Kind != yaml.ScalarNode && len(words) > 1 && words[0] == "CMD" {
				command = words[1:]
			} else if e.node.Kind != yaml.ScalarNode {
				command[2] = strings.Join(words[min(1, len(words)):], " ") // after CMD-SHELL or NONE
			}
		case "interval":
			k.set("period", e.text())
		case "timeout":
			k.set("timeout", e.text())
		case "retries":
			k.set("failure_threshold", e.text())
		case "start_period", "start_interval":
		case "disable":
			return
		default:
			c.apply(nil, e.name, c.at(e, where+"."+e.name), s, "")
		}
	}
	if command != nil && command[len(command)-1] != "" {
		k.set("exec.command", command)
		s.checks = append(s.checks, k)
	}
}
