package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hinit/internal/nearest"
)

// The placeholders of templates. The struct tag "fill" says which of them a key may use.
const (
	agentPlaceholder       = "agent"        // value of the key agent.binary
	homePlaceholder        = "home"         // value of the key home
	profilePlaceholder     = "profile"      // name of the profile
	profileHomePlaceholder = "profile_home" // home directory of the profile
	toPlaceholder          = "to"           // new name of a profile that is renamed
	taskPlaceholder        = "task"         // task of a one-shot run
	optionsPlaceholder     = "options"      // must be a whole word of a command; the client's options replace the word
)

// AgentInfluences reports whether the agent may influence the command or an address of a service that runs as user. The result is
// true only for the agent's own user. The agent writes the .env files of its profiles, so for any other user {env:NAME} is filled
// from hinit.yaml alone.
func (c *Config) AgentInfluences(user string) bool { return user == "" || user == c.Agent.User }

var variablePlaceholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{env:([A-Za-z_][A-Za-z0-9_]*)\}`) })

// FillVariables replaces every {env:NAME} in text with the result of value for NAME.
func FillVariables(text string, value func(name string) string) string {
	if !strings.Contains(text, "{env:") {
		return text
	}
	return variablePlaceholder().ReplaceAllStringFunc(text, func(hole string) string { return value(hole[len("{env:") : len(hole)-1]) })
}

// Variables lists the names of every {env:NAME} in the templates of a check.
func (c *Check) Variables() (names []string) {
	for _, text := range c.Templates() {
		FillVariables(text, func(name string) string {
			names = append(names, name)
			return ""
		})
	}
	return names
}

// Expand returns cmd with its placeholders replaced: {agent} and {home} from c, the others from vars by name without braces
// ("profile", "profile_home", "to"). A value in vars wins, and a placeholder without a value stays as it is. "{{word}}" stands
// for the literal text "{word}" and "{{{word}}}" for "{{word}}". "${word}" stays, for a shell, and any other brace is plain text.
// The result shares no memory with cmd.
func (c *Config) Expand(cmd []string, vars map[string]string) []string {
	out := slices.Clone(cmd)
	for i, word := range cmd {
		out[i] = c.ExpandString(word, vars)
	}
	return out
}

// ExpandString is like [Config.Expand] for one text, such as agent.cwd or a value of agent.env.
func (c *Config) ExpandString(s string, vars map[string]string) string {
	return scanTemplate(s, func(name string) (string, bool) {
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

// templateBraces matches a placeholder, a placeholder in double or triple braces (which stands for literal text), and any other
// double brace.
var templateBraces = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$?\{[a-z_]+\}|\{\{[a-z_]+\}\}|\{\{\{[a-z_]+\}\}\}|\{\{`)
})

// scanTemplate returns s with each placeholder replaced by the result of value. If value returns false, the placeholder stays as
// it is.
func scanTemplate(s string, value func(name string) (string, bool)) string {
	if !strings.Contains(s, "{") {
		return s
	}
	return templateBraces().ReplaceAllStringFunc(s, func(found string) string {
		switch {
		case found == "{{" || found[0] == '$': // syntax of another program: neither an escape nor a placeholder
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

// checkTemplate returns the reason why the first invalid placeholder in s is invalid, or "" if all are valid. Only the
// placeholders in known are valid.
func checkTemplate(s string, known []string) string {
	problem := ""
	scanTemplate(s, func(name string) (string, bool) {
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
