package config

import (
	"fmt"
	"slices"
	"strings"
)

// Placeholders of the templates. The schema says which of them a key may use.
const (
	holeAgent       = "agent"        // agent.binary
	holeHome        = "home"         // home
	holeProfile     = "profile"      // name of the profile
	holeProfileHome = "profile_home" // home directory of the profile
	holeTo          = "to"           // new name, in a rename
	holeTask        = "task"         // task of a one-shot run
	holeOptions     = "options"      // whole word; the client's words replace it
)

// AgentDecides reports whether the agent may set parts of a command or an address that belongs to this user. It is true only for the
// agent's own user. The agent writes the .env of its profiles, so templates of other users get {env:NAME} from hinit.yaml alone.
func (c *Config) AgentDecides(user string) bool { return user == "" || user == c.Agent.User }

// FillVariables replaces every {env:NAME} in text by the result of value.
func FillVariables(text string, value func(name string) string) string {
	const begin = "{env:"
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, begin)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		name, rest, closed := strings.Cut(after, "}")
		if !closed || !envName(name) {
			b.WriteString(begin)
			text = after
			continue
		}
		b.WriteString(value(name))
		text = rest
	}
}

// envName reports whether a name is valid in {env:NAME}: a letter or underscore, then letters, digits and underscores.
func envName(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
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
// ("profile", "profile_home", "to"). A value in vars wins, and a placeholder without a value stays as it is. "{{word}}" stands for
// the literal text "{word}" and "{{{word}}}" for "{{word}}". "${word}" stays, for a shell, and any other brace is plain text. The
// result shares no memory with cmd.
func (c *Config) Expand(cmd []string, vars map[string]string) []string {
	out := make([]string, len(cmd))
	for i, word := range cmd {
		out[i] = c.ExpandString(word, vars)
	}
	return out
}

// ExpandString is like [Config.Expand] for one text, such as agent.cwd or a value of agent.env.
func (c *Config) ExpandString(s string, vars map[string]string) string {
	return scanTemplate(s, func(name string) (string, bool) {
		if v, ok := vars[name]; ok {
			return v, true
		}
		switch name {
		case holeAgent:
			return c.Agent.Binary, true
		case holeHome:
			return c.Home, true
		}
		return "", false
	})
}

// scanTemplate returns s with each placeholder replaced by the result of value. If value returns false, the placeholder stays as it
// is.
func scanTemplate(s string, value func(name string) (string, bool)) string {
	if !strings.Contains(s, "{") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '{' {
			b.WriteByte(s[i])
			i++
			continue
		}
		if name := holeName(s[i+1:]); name != "" {
			v, ok := "", false
			if i == 0 || s[i-1] != '$' {
				v, ok = value(name)
			}
			if !ok {
				v = "{" + name + "}"
			}
			b.WriteString(v)
			i += len(name) + 2
			continue
		}
		if strings.HasPrefix(s[i:], "{{") {
			if name := holeName(s[i+2:]); name != "" && strings.HasPrefix(s[i+2+len(name):], "}}") {
				b.WriteString("{" + name + "}")
				i += len(name) + 4
				continue
			}
			if strings.HasPrefix(s[i:], "{{{") { // three braces, as in {{{end}}}, stand for two
				if name := holeName(s[i+3:]); name != "" && strings.HasPrefix(s[i+3+len(name):], "}}}") {
					b.WriteString("{{" + name + "}}")
					i += len(name) + 6
					continue
				}
			}
			// This is no escape. The inner brace is no placeholder either, as in the templates of other programs.
			b.WriteString("{{")
			i += 2
			continue
		}
		b.WriteByte('{')
		i++
	}
	return b.String()
}

// holeName returns the name of a placeholder whose opening brace is just before s, or "": lower-case letters and underscores, then a
// closing brace.
func holeName(s string) string {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '}':
			return s[:i]
		case c != '_' && (c < 'a' || c > 'z'):
			return ""
		}
	}
	return ""
}

// checkTemplate returns the fault of a placeholder in s, or "". Only the placeholders in known are valid.
func checkTemplate(s string, known []string) string {
	problem := ""
	scanTemplate(s, func(name string) (string, bool) {
		if problem != "" || slices.Contains(known, name) {
			return "", false
		}
		braced := make([]string, len(known))
		for i, k := range known {
			braced[i] = "{" + k + "}"
		}
		if near := Nearest("{"+name+"}", braced); near != "" {
			problem = fmt.Sprintf("unknown placeholder {%s}; did you mean %s?", name, near)
		} else {
			problem = fmt.Sprintf("unknown placeholder {%s}; known here: %s; write {{%s}} for the text itself",
				name, strings.Join(braced, ", "), name)
		}
		return "", false
	})
	return problem
}
