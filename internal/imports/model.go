package imports

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"

	"hinit/internal/config"
)

// place is a position in the other supervisor's configuration, for notes.
type place struct {
	file string
	line int // line in the file; 0: the whole file
}

// values maps keys of hinit.yaml, as paths with dots, to their values. A value is a string, a []string, a []pair or a YAML
// node. Empty values are left out.
type values map[string]any

// set sets a key.
func (v values) set(key string, value any) { v[key] = value }
func (v values) text(key string) string    { text, _ := v[key].(string); return text }
func (v values) list(key string) []string  { list, _ := v[key].([]string); return list }

// service is a service of the new hinit.yaml.
type service struct {
	name    string
	oldName string
	group   string // name of a group in the other supervisor's configuration, which several services may share
	comment string
	values
	needs  []need
	checks []*service // health checks, see [newCheck]
	place  place
	places map[string]place // origin of each key, by the first part of the key
}

// setFrom sets a key, and records the origin of the value in the old configuration.
func (s *service) setFrom(key string, at place, value any) {
	s.set(key, value)
	s.recordPlace(key, at)
}

func (s *service) recordPlace(key string, at place) {
	key, _, _ = strings.Cut(key, ".")
	if _, known := s.places[key]; !known && key != "" {
		s.places[key] = at
	}
}

func (s *service) drop(key string) bool {
	before := len(s.values)
	maps.DeleteFunc(s.values, func(path string, _ any) bool { return path == key || strings.HasPrefix(path, key+".") })
	return len(s.values) < before
}

// isTask reports whether the service is a task, which ends by itself.
func (s *service) isTask() bool { return s.text("once") != "" || s.text("schedule.cron") != "" }

// addVariables appends environment variables. A later variable replaces an earlier one of the same name.
func (s *service) addVariables(list ...envVar) {
	have, _ := s.values["env"].([]envVar)
	s.set("env", append(slices.Clip(have), list...))
}

type envVar struct{ name, value string }

type need struct {
	name, until string
	optional    bool
	place       place
}

// addNeed adds a need. It ignores a need for the service itself, and a second need for the same service.
func (s *service) addNeed(n need) {
	if n.name != s.name && !slices.ContainsFunc(s.needs, func(have need) bool { return have.name == n.name }) {
		s.needs = append(s.needs, n)
	}
}

// yaml returns the text of the new configuration, before package config checks it.
func (im *importer) yaml(from, format string) ([]byte, error) {
	list := &yaml.Node{Kind: yaml.MappingNode}
	for _, s := range im.services {
		name := textNode(s.name)
		name.HeadComment = s.comment
		list.Content = append(list.Content, name, s.node())
	}
	root := encodeMapping[config.Config](im.defaults.values)
	root.Content = append(root.Content, textNode("services"), list)
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
	var needs []*yaml.Node
	for _, n := range s.needs {
		one := textNode(n.name)
		if n.until != "" || n.optional {
			one = encodeMapping[config.Need](values{"name": n.name, "until": n.until, "optional": lo.Ternary(n.optional, "true", "")})
			one.Style = yaml.FlowStyle
		}
		needs = append(needs, one)
	}
	checks := lo.Map(s.checks, func(c *service, _ int) *yaml.Node { return encodeMapping[config.Check](c.values) })
	s.set("needs", sequenceNode(yaml.FlowStyle, needs))
	s.set("checks", sequenceNode(0, checks))
	return encodeMapping[config.Service](s.values)
}

// encodeMapping returns values as a YAML mapping. The keys have the order of config.Keys for T. A key with dots becomes a nested
// mapping.
func encodeMapping[T any](values values) *yaml.Node {
	root, groups := &yaml.Node{Kind: yaml.MappingNode}, make(map[string]*yaml.Node)
	for _, key := range config.Keys[T]() {
		value := valueNode(key.ValuePointer(new(T)), len(key.Placeholders) > 0, values[key.Path])
		if value == nil {
			continue
		}
		in, name := root, key.Path
		if group, inside, nested := strings.Cut(key.Path, "."); nested {
			if name, in = inside, groups[group]; in == nil {
				in = &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
				groups[group] = in
				root.Content = append(root.Content, textNode(group), in)
			}
		}
		in.Content = append(in.Content, textNode(name), value)
	}
	return root
}

// valueNode returns a value as a YAML node, or nil if it is empty. field points to the type of the key in package config. If
// isTemplate is true, hinit.yaml allows placeholders in the key, so valueNode escapes text that looks like a placeholder.
func valueNode(field any, isTemplate bool, value any) *yaml.Node {
	one := func(word string) *yaml.Node {
		switch field.(type) {
		case *string, *[]string, *config.Paths, *map[string]string:
			if isTemplate {
				word = escapePlaceholders(word)
			}
			return textNode(word)
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Value: word}
	}
	switch value := value.(type) {
	case *yaml.Node:
		return value
	case string:
		if value != "" {
			return one(value)
		}
	case []string:
		return sequenceNode(yaml.FlowStyle, lo.Map(value, func(word string, _ int) *yaml.Node { return one(word) }))
	case []envVar:
		n, last := &yaml.Node{Kind: yaml.MappingNode}, lo.SliceToMap(value, func(p envVar) (string, string) { return p.name, p.value })
		for _, p := range lo.UniqBy(value, func(p envVar) string { return p.name }) {
			n.Content = append(n.Content, textNode(p.name), one(last[p.name]))
		}
		if len(value) > 0 {
			return n
		}
	}
	return nil
}

func textNode(value string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(value)
	return n
}

func sequenceNode(style yaml.Style, items []*yaml.Node) *yaml.Node {
	if len(items) == 0 {
		return nil
	}
	return &yaml.Node{Kind: yaml.SequenceNode, Content: items, Style: style}
}

// placeholderText matches text that hinit would read as a placeholder, such as {home}.
var placeholderText = regexp.MustCompile(`(\$?)\{([a-z_]+)\}`)

// escapePlaceholders escapes a text so that hinit reads no part of it as a placeholder.
func escapePlaceholders(value string) string {
	return placeholderText.ReplaceAllStringFunc(value, func(m string) string {
		if m[0] == '$' {
			return m
		}
		return "{" + m + "}"
	})
}

// unprintable matches characters that unicode.IsPrint calls unprintable.
var unprintable = regexp.MustCompile(`[^\pL\pM\pN\pP\pS ]`)

// commentLine joins descriptions into one comment, without unprintable characters and empty lines.
func commentLine(texts ...string) string {
	lines := lo.Map(strings.Split(strings.Join(texts, "\n"), "\n"), func(line string, _ int) string {
		return unprintable.ReplaceAllString(strings.Join(strings.Fields(line), " "), "")
	})
	return strings.Join(lo.Compact(lines), "\n")
}
