package imports

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// entry is a key of a YAML mapping.
type entry struct {
	name string
	line int
	node *yaml.Node
}

func (e entry) text() string { return strings.TrimSpace(e.node.Value) }

// words returns the text of an entry, or "" without a text.
func (e entry) words() string {
	if e.node == nil || e.node.Kind != yaml.ScalarNode {
		return ""
	}
	return e.node.Value
}

// isTrue reports whether the value is a true boolean, also in the words of YAML 1.1.
func (e entry) isTrue() bool {
	return e.node.Kind == yaml.ScalarNode && slices.Contains([]string{"true", "yes", "on", "y"}, strings.ToLower(e.node.Value))
}

// isNull reports whether a key has no value.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// entries returns the keys of a mapping in order, with the keys that << merges into it.
func entries(n *yaml.Node) []entry { return entriesIn(n, 0) }

// mostMerges limits the depth of <<, because a mapping can merge itself.
const mostMerges = 8

func entriesIn(n *yaml.Node, depth int) (list []entry) {
	n = aliased(n)
	if n == nil || n.Kind != yaml.MappingNode || depth > mostMerges {
		return nil
	}
	var merged []entry
	have := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], aliased(n.Content[i+1])
		if name.Value == "<<" {
			if value.Kind == yaml.SequenceNode {
				for _, one := range value.Content {
					merged = append(merged, entriesIn(one, depth+1)...)
				}
			} else {
				merged = append(merged, entriesIn(value, depth+1)...)
			}
			continue
		}
		have[name.Value] = true
		list = append(list, entry{name.Value, name.Line, value})
	}
	for _, e := range merged {
		if !have[e.name] {
			have[e.name] = true
			list = append(list, e)
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
func items(n *yaml.Node) (list []string) {
	n = aliased(n)
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

// variables reads variables from a mapping, or from a list of NAME=VALUE.
func variables(n *yaml.Node) (list []pair) {
	n = aliased(n)
	if n == nil {
		return nil
	}
	if n.Kind == yaml.MappingNode {
		for _, e := range entries(n) {
			list = append(list, pair{e.name, e.node.Value})
		}
		return list
	}
	for _, one := range items(n) {
		name, value, _ := strings.Cut(one, "=")
		list = append(list, pair{name, value})
	}
	return list
}

// readYAML reads one document, which must be a mapping.
func readYAML(path string) (*yaml.Node, error) {
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
	return aliased(doc.Content[0]), nil
}
