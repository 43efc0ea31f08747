package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hinit/internal/nearest"
)

// Placeholders of templates, without their braces. The struct tag "fill" says which of them a key may use.
const (
	agentPlaceholder       = "agent"
	homePlaceholder        = "home"
	profilePlaceholder     = "profile"
	profileHomePlaceholder = "profile_home"
	newNamePlaceholder     = "to"      // new name of a profile that is being renamed
	taskPlaceholder        = "task"    // task of a one-shot run
	optionsPlaceholder     = "options" // options that the client gives to a one-shot run; the placeholder must be a whole word of the command
)

// AgentMayFillVariables reports whether the .env files of the agent may supply values for {env:NAME} in the command and checks
// of a service with this user. For any other user than the agent's, only hinit.yaml supplies them, so that the agent can't
// choose commands of that user.
func (c *Config) AgentMayFillVariables(user string) bool { return user == "" || user == c.Agent.User }

var variablePlaceholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{env:([A-Za-z_][A-Za-z0-9_]*)\}`) })

// FillVariables replaces each {env:NAME} in text with value(NAME).
func FillVariables(text string, value func(name string) string) string {
	if !strings.Contains(text, "{env:") {
		return text
	}
	return variablePlaceholder().ReplaceAllStringFunc(text, func(hole string) string { return value(hole[len("{env:") : len(hole)-1]) })
}

// Variables returns the names in all placeholders {env:NAME} of a check.
func (c *Check) Variables() (names []string) {
	for _, text := range c.Templates() {
		FillVariables(text, func(name string) string {
			names = append(names, name)
			return ""
		})
	}
	return names
}

// Expand returns a copy of cmd with its placeholders replaced. vars has the values by name, such as "profile"; if vars lacks
// them, {agent} and {home} come from c. A placeholder without a value stays. "{{word}}" becomes the text "{word}", and
// "{{{word}}}" becomes "{{word}}". "${word}" of a shell and all other braces stay.
func (c *Config) Expand(cmd []string, vars map[string]string) []string {
	out := slices.Clone(cmd)
	for i, word := range cmd {
		out[i] = c.ExpandString(word, vars)
	}
	return out
}

// ExpandString is [Config.Expand] for one text.
func (c *Config) ExpandString(s string, vars map[string]string) string {
	return replacePlaceholders(s, func(name string) (string, bool) {
		value, known := vars[name]
		switch {
		case known:
		case name == agentPlaceholder:
			return c.Agent.Binary, true
		case name == homePlaceholder:
			return c.Home, true
		}
		return value, known
	})
}

// templateBraces matches placeholders, words in two or three braces (escapes), and any other pair of opening braces.
var templateBraces = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$?\{[a-z_]+\}|\{\{[a-z_]+\}\}|\{\{\{[a-z_]+\}\}\}|\{\{`)
})

// replacePlaceholders replaces each placeholder in s with value(name). If value returns false, the placeholder stays.
func replacePlaceholders(s string, value func(name string) (string, bool)) string {
	if !strings.Contains(s, "{") {
		return s
	}
	return templateBraces().ReplaceAllStringFunc(s, func(found string) string {
		switch {
		// The text belongs to the syntax of another program.
		case found == "{{" || found[0] == '$':
			return found
		case strings.HasPrefix(found, "{{"):
			return found[1 : len(found)-1]
		}
		if v, ok := value(strings.Trim(found, "{}")); ok {
			return v
		}
		return found
	})
}

// checkTemplate returns the message about the first placeholder in s that is not in known, or "".
func checkTemplate(s string, known []string) string {
	problem := ""
	replacePlaceholders(s, func(name string) (string, bool) {
		if problem != "" || slices.Contains(known, name) {
			return "", false
		}
		if near := nearest.Word(name, known); near != "" {
			problem = fmt.Sprintf("unknown placeholder {%s}; did you mean {%s}?", name, near)
		} else {
			problem = fmt.Sprintf("unknown placeholder {%s}; known here: %s; write {{%s}} for the text itself",
				name, "{"+strings.Join(known, "}, {")+"}", name)
		}
		return "", false
	})
	return problem
}
