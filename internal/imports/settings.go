package imports

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"

	"hinit/internal/yamltext"
)

// section is a section of an INI file.
type section struct {
	name string
	place
	keys []setting
}

// useSetting returns a setting of the section and marks it as used, so that no note calls it left out. If the section lacks the
// setting, the result has the place of the section, and used is false.
func (s *section) useSetting(name string) (found setting) {
	found.place = s.place
	for i := range s.keys { // if a name occurs twice, the last setting counts
		if k := &s.keys[i]; k.name == name {
			k.used = true
			found = *k
		}
	}
	return found
}

var trailingComment = regexp.MustCompile(`[ \t]+[;#].*`)

// readINI reads an INI file, and adds a note for each line that it can't parse. For a unit (isUnit) it follows
// systemd.syntax(7): a comment is a whole line, and a backslash at the end continues a line. Otherwise it follows supervisord,
// which also allows "key: value", comments after a blank, upper case in keys, and indented lines that continue a value. The
// parser of go-systemd drops the line numbers that the notes need.
func (im *importer) readINI(path string, isUnit bool) (sections []*section, err error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	separators := lo.Ternary(isUnit, "=", "=:")
	var last *setting // setting that the next line may continue
	number := 0
	for raw := range strings.SplitSeq(string(text), "\n") {
		number++
		at := place{path, number}
		line := strings.TrimRight(raw, "\r \t")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" && isUnit { // an empty line ends a setting even after a backslash
			last = nil
		}
		if trimmed == "" || trimmed[0] == ';' || trimmed[0] == '#' {
			continue
		}
		more := isUnit && strings.HasSuffix(line, `\`)
		if isUnit {
			line = strings.TrimSuffix(trimmed, `\`)
		} else {
			line = trailingComment.ReplaceAllString(line, "")
		}
		switch {
		case last != nil && isUnit:
			last.value += " " + line
		case last != nil && (line[0] == ' ' || line[0] == '\t'):
			last.value = strings.TrimSpace(last.value + "\n" + strings.TrimSpace(line))
			more = true
		case line[0] == '[' && strings.Contains(line, "]"):
			sections = append(sections, &section{name: strings.TrimSpace(line[1:strings.Index(line, "]")]), place: at})
		default:
			end := strings.IndexAny(line, separators)
			if end <= 0 || len(sections) == 0 {
				im.addNote(sourceRef{place: at}, "the line is no section, key or comment, and is left out")
				continue
			}
			in := sections[len(sections)-1]
			name := strings.TrimSpace(line[:end])
			where := name
			if !isUnit {
				name, more = strings.ToLower(name), true
				where = "[" + in.name + "] " + name
			}
			in.keys = append(in.keys, setting{sourceRef: sourceRef{at, where}, name: name, value: strings.TrimSpace(line[end+1:])})
			last = &in.keys[len(in.keys)-1]
		}
		if !more {
			last = nil
		}
	}
	return sections, nil
}

// isNull reports whether the value of a key is empty or null.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// keys returns the settings in a mapping in order, including settings that << merges into it. Their full names for notes begin
// with the name of the mapping.
func (e setting) keys() []setting { return e.keysOnce(make(map[*yaml.Node]bool)) }

// keysOnce returns the keys of a mapping that is not in seen, and adds the mapping to seen. A second merge of the same mapping
// adds no settings. Without seen, ten lines of merges could produce a billion settings, and a mapping that merges itself would
// never end.
func (e setting) keysOnce(seen map[*yaml.Node]bool) (list []setting) {
	n := resolveAlias(e.node)
	if n == nil || n.Kind != yaml.MappingNode || seen[n] {
		return nil
	}
	seen[n] = true
	var merged []setting
	have := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], resolveAlias(n.Content[i+1])
		if name.Value != "<<" {
			if have[name.Value] { // after a merge of pebble's layers, the last layer wins
				list = slices.DeleteFunc(list, func(k setting) bool { return k.name == name.Value })
			}
			have[name.Value] = true
			where := strings.TrimPrefix(e.where+"."+name.Value, ".")
			list = append(list, setting{sourceRef: sourceRef{place{e.file, name.Line}, where}, name: name.Value, value: strings.TrimSpace(value.Value), node: value})
			continue
		}
		sources := lo.Ternary(value.Kind == yaml.SequenceNode, value.Content, []*yaml.Node{value})
		for _, e.node = range sources {
			merged = append(merged, e.keysOnce(seen)...)
		}
	}
	merged = lo.Filter(merged, func(k setting, _ int) bool { return !have[k.name] })
	return append(list, lo.UniqBy(merged, func(k setting) string { return k.name })...)
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	for depth := 0; n != nil && n.Kind == yaml.AliasNode && depth < 32; depth++ {
		n = n.Alias
	}
	return n
}

func (e setting) scalarsByName() map[string]string {
	return lo.SliceToMap(e.keys(), func(k setting) (string, string) { return k.name, k.value })
}

// elements returns the elements of a list, as settings with the name of the list. Any other value counts as a list with one
// element.
func (e setting) elements() []setting {
	n := resolveAlias(e.node)
	if n == nil || isNull(n) {
		return nil
	}
	list := lo.Ternary(n.Kind == yaml.SequenceNode, n.Content, []*yaml.Node{n})
	return lo.Map(list, func(one *yaml.Node, _ int) setting {
		e.node = resolveAlias(one)
		e.value = e.node.Value
		return e
	})
}

// scalars returns the scalars in a list. A scalar counts as a list with one element.
func (e setting) scalars() []string {
	return lo.FilterMap(e.elements(), func(one setting, _ int) (string, bool) { return one.value, one.node.Kind == yaml.ScalarNode })
}

// variables wraps [setting.variables] for rule.convertNode.
func variables(e setting) any { return e.variables() }

// variables reads environment variables from a mapping, or from a list of NAME=VALUE. It leaves out a variable without a value,
// because a service inherits such a variable.
func (e setting) variables() []envVar {
	if n := resolveAlias(e.node); n != nil && n.Kind == yaml.MappingNode {
		return lo.FilterMap(e.keys(), func(k setting, _ int) (envVar, bool) { return envVar{k.name, k.node.Value}, !isNull(k.node) })
	}
	return lo.FilterMap(e.scalars(), func(one string, _ int) (envVar, bool) {
		name, value, has := strings.Cut(one, "=")
		return envVar{name, value}, has
	})
}

// readYAML reads a YAML file and returns the keys of its only document, which must be a mapping.
func readYAML(path string) ([]setting, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	root, faults := yamltext.Parse(text)
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s is neither INI nor YAML: line %d: %s", path, faults[0].Line, faults[0].Message)
	}
	if root == nil || resolveAlias(root).Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s has no settings: it is neither an INI file nor a mapping in YAML", path)
	}
	if err := root.Decode(new(any)); err != nil { // finds faults such as a repeated key
		return nil, fmt.Errorf("%s has a mistake: %s", path, strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:")), " "))
	}
	return setting{sourceRef: sourceRef{place: place{file: path}}, node: root}.keys(), nil
}
