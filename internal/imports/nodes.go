package imports

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// isTrue reports whether the value is a true boolean, also in the words of YAML 1.1.
func (e setting) isTrue() bool {
	return slices.Contains([]string{"true", "yes", "on", "y"}, strings.ToLower(e.value))
}

// isNull reports whether a key has no value.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// keys returns the keys of a mapping in order, with the keys that << merges into it. Their names in notes begin with the mapping's.
func (e setting) keys() []setting { return e.keysAt(0) }

// mostMerges limits the depth of <<, because a mapping can merge itself.
const mostMerges = 8

func (e setting) keysAt(depth int) (list []setting) {
	n := aliased(e.node)
	if n == nil || n.Kind != yaml.MappingNode || depth > mostMerges {
		return nil
	}
	var merged []setting
	have := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], aliased(n.Content[i+1])
		if name.Value != "<<" {
			have[name.Value] = true
			where := strings.TrimPrefix(e.where+"."+name.Value, ".")
			list = append(list, setting{from: from{place{e.file, name.Line}, where}, name: name.Value, value: strings.TrimSpace(value.Value), node: value})
			continue
		}
		sources := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			sources = value.Content
		}
		for _, e.node = range sources {
			merged = append(merged, e.keysAt(depth+1)...)
		}
	}
	for _, k := range merged {
		if !have[k.name] {
			have[k.name] = true
			list = append(list, k)
		}
	}
	return list
}

func aliased(n *yaml.Node) *yaml.Node {
	for depth := 0; n != nil && n.Kind == yaml.AliasNode && depth < 32; depth++ {
		n = n.Alias
	}
	return n
}

// items returns the scalars of a list, or a single scalar.
func (e setting) items() (list []string) {
	n := aliased(e.node)
	if n == nil || isNull(n) {
		return nil
	}
	if n.Kind == yaml.ScalarNode {
		return []string{n.Value}
	}
	for _, one := range n.Content {
		if one = aliased(one); one.Kind == yaml.ScalarNode {
			list = append(list, one.Value)
		}
	}
	return list
}

// variables is [setting.variables] for a rule.
func variables(e setting) any { return e.variables() }

// variables reads variables from a mapping, or from a list of NAME=VALUE.
func (e setting) variables() (list []pair) {
	for _, k := range e.keys() {
		list = append(list, pair{k.name, k.node.Value})
	}
	if list != nil || e.node == nil || aliased(e.node).Kind == yaml.MappingNode {
		return list
	}
	for _, one := range e.items() {
		name, value, _ := strings.Cut(one, "=")
		list = append(list, pair{name, value})
	}
	return list
}

// readYAML reads the keys of one document, which must be a mapping.
func readYAML(path string) ([]setting, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 || aliased(doc.Content[0]).Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s holds no mapping", path)
	}
	return setting{from: from{place: place{file: path}}, node: doc.Content[0]}.keys(), nil
}
