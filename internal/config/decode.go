package config

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"hinit/internal/nearest"
	"hinit/internal/trust"
)

// decoder decodes the YAML document of hinit.yaml into structs, whose tags define the valid keys (see [Key]). It collects all
// mistakes in problems.
type decoder struct {
	problems     *problems
	origins      map[string]origin
	changeableBy *trust.Violation // user who can change the file; nil if only root can, or if hinit isn't root
	servicesOnly bool             // the configuration is for hinit run
}

// origin is the place where a value was set: a line of a file or an environment variable. The zero origin is a built-in
// default.
type origin struct {
	file string
	line int
	env  string
}

func (o origin) String() string {
	switch {
	case o.env != "":
		return "env " + o.env
	case o.file != "":
		return fmt.Sprintf("%s:%d", o.file, o.line)
	default:
		return "default"
	}
}

// keyEntry is a key of a mapping with its value. If the value is an alias, entry has the node that the alias stands for.
type keyEntry struct {
	key   string
	line  int
	value *yaml.Node
}

// entries returns the keys and values of the mapping n. It reports a mistake if n is not a mapping, or if a key is not a text
// or occurs twice. An empty n has no keys. prefix and keys are for messages: the path of the mapping with a dot at the end (""
// for the document), and the valid keys.
func (d *decoder) entries(n *yaml.Node, prefix string, keys []string) []keyEntry {
	n = resolveAlias(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		path := strings.TrimSuffix(prefix, ".")
		d.problems.reportAtLine(n.Line, "cannot read %s: expected a mapping%s, got %s", cmp.Or(path, "the file"), cmp.Or(listKeysText(" with keys ", keys), mappingHint(path)), describeNode(n))
		return nil
	}
	var out []keyEntry
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := resolveAlias(n.Content[i])
		switch {
		case k.ShortTag() == "!!merge":
			d.problems.reportAtLine(k.Line, "merge keys (<<) are not supported; write the keys out")
			continue
		case k.Kind != yaml.ScalarNode:
			d.problems.reportAtLine(k.Line, "cannot read %s?: expected the name of a key, got %s", prefix, describeNode(k))
			continue
		}
		if k.Value == "true" && slices.Contains(keys, "on") {
			k.Value = "on"
		}
		if first, twice := seen[k.Value]; twice {
			d.problems.reportAtLine(k.Line, "duplicate key %q; it is already set on line %d", prefix+k.Value, first)
			continue
		}
		seen[k.Value] = k.Line
		out = append(out, keyEntry{k.Value, k.Line, resolveAlias(n.Content[i+1])})
	}
	return out
}

// namedEntries returns the entries of a mapping whose keys are names, such as services. n may be nil, and prefix is as in
// entries. nameProblem returns why a name is invalid, or "". The parameter what has the format of the message about an invalid
// name, with %q for the name.
func (d *decoder) namedEntries(n *yaml.Node, prefix, what string, nameProblem func(name string) string) map[string]keyEntry {
	out := map[string]keyEntry{}
	if n == nil {
		return out
	}
	for _, e := range d.entries(n, prefix, nil) {
		if reason := nameProblem(e.key); reason != "" {
			d.problems.reportAtLine(e.line, "cannot use "+what+": %s", e.key, reason)
			continue
		}
		out[e.key] = e
	}
	return out
}

// resolveAlias returns the node that an alias stands for. An alias can refer to a node that contains the alias, so a caller that
// follows aliases must limit the depth.
func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// decodeMapping decodes the mapping n into the struct root, whose keys are schema. within is the path of the mapping below
// root, with a dot at the end, or "". base is the path of root, for messages. The functions in handlers decode the values of
// their keys.
func (d *decoder) decodeMapping(n *yaml.Node, base, within string, schema []Key, root any, handlers map[string]func(*yaml.Node)) {
	names := keyNames(schema, within, handlers)
	for _, e := range d.entries(n, base+within, names) {
		path := within + e.key
		if take, ok := handlers[path]; ok {
			take(e.value)
			continue
		}
		i := slices.IndexFunc(schema, func(k Key) bool {
			isShort := k.AllowsShortForm && isTextNode(e.value) && k.Path[:strings.LastIndexByte(k.Path, '.')] == path // a single text is valid in place of the mapping
			return k.Path == path || isShort && slices.Contains(names, e.key)
		})
		switch {
		case i >= 0:
			d.decodeKey(e, base, &schema[i], root)
		case slices.Contains(names, e.key):
			d.decodeMapping(e.value, base, path+".", schema, root, handlers)
		default:
			d.reportUnknownKey(e.line, base+within, e.key, names, schema)
		}
	}
}

func isTextNode(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" }

// keyNames returns the valid keys directly below the path within.
func keyNames(fields []Key, within string, other map[string]func(*yaml.Node)) []string {
	var names []string
	for _, path := range slices.AppendSeq(keyPaths(fields), maps.Keys(other)) {
		if rest, ok := strings.CutPrefix(path, within); ok {
			name, _, _ := strings.Cut(rest, ".")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func keyPaths(fields []Key) []string {
	paths := make([]string, len(fields))
	for i, k := range fields {
		paths[i] = k.Path
	}
	slices.Sort(paths)
	return paths
}

// reportUnknownKey reports an unknown key below prefix. The message suggests the valid key that was probably meant, or lists
// all valid keys. names are the keys of this mapping, and schema has all keys below the same root.
func (d *decoder) reportUnknownKey(line int, prefix, key string, names []string, schema []Key) {
	if d.problems.countIfFull() {
		return
	}
	hint := listKeysText("; known here: ", names)
	if invisible := invisibleCharacter(key); invisible != "" && nearest.Word(key, names) == "" {
		hint = invisible
	} else if meant := suggestedKey(prefix, key, names, keyPaths(schema)); meant != "" {
		hint = fmt.Sprintf("; did you mean %q?", meant)
	}
	d.problems.reportAtLine(line, "unknown key %q%s", prefix+key, hint)
}

// suggestedKey returns the valid key that an unknown key below prefix probably means, or "". It tries the names in other
// programs, a similar spelling in this mapping, and the same name elsewhere below the root.
func suggestedKey(prefix, key string, names, paths []string) string {
	// maxRestarts, max-restarts and MAX_RESTARTS become max_restarts
	word := strings.ToLower(strings.ReplaceAll(caseBoundary().ReplaceAllString(key, "${1}_$2"), "-", "_"))
	if other, known := foreignKeyNames[word]; known && slices.Contains(names, strings.Split(other, ".")[0]) {
		return prefix + other
	}
	if near := cmp.Or(nearest.Word(key, names), nearest.Word(word, names)); near != "" {
		return prefix + near
	}
	root := ""
	if parts := strings.SplitAfterN(prefix, ".", 3); parts[0] == "services." || parts[0] == "profiles." {
		root = parts[0] + parts[1] // root is a path such as "services.web."
	}
	for _, p := range paths {
		if strings.HasSuffix("."+p, "."+key) || strings.HasSuffix("."+p, "."+word) {
			return root + p
		}
	}
	return ""
}

// decodeKey decodes and checks the value of one key, and records its origin. It reports an invalid value and keeps the previous
// one.
func (d *decoder) decodeKey(e keyEntry, base string, k *Key, root any) {
	key := base + k.Path
	at := k.ValuePointer(root)
	was := reflect.ValueOf(at).Elem().Interface() // a shallow copy is enough: mappings and lists are replaced, never modified
	before := len(d.problems.list)
	d.decodeValue(e.value, key, at, strings.ReplaceAll(cmp.Or(k.Type, "text"), "`", ""))
	if len(d.problems.list) > before {
		return
	}
	valid := k.Placeholders
	if d.servicesOnly { // hinit run hosts no agent, so {agent} has no value
		valid = slices.DeleteFunc(slices.Clone(valid), func(name string) bool { return name == agentPlaceholder })
	}
	reason := checkPlaceholders(at, valid)
	if reason == "" && k.check != nil {
		reason = k.check(at)
	}
	if reason != "" {
		d.problems.reportAtLine(e.value.Line, "cannot set %s: %s", key, reason)
		return
	}
	if k.RootOnly && d.changeableBy != nil && !reflect.DeepEqual(was, reflect.ValueOf(at).Elem().Interface()) {
		d.reportViolation(e.line, key)
		return
	}
	if k.Alias != "" {
		key = base + k.Alias
	}
	if first, set := d.origins[key]; set && first.env == "" { // the file overrides a variable that sets the command of a built-in service
		d.problems.reportAtLine(e.line, "cannot set %s: it is already set on line %d", key, first.line)
		return
	}
	switch at.(type) {
	case *map[string]string, *map[string]ResourceLimit:
	default:
		d.origins[key] = origin{file: d.problems.file, line: e.line}
	}
}

// reportViolation reports a key that is valid only in a file that root alone can change.
func (d *decoder) reportViolation(line int, key string) {
	d.problems.reportAtLine(line, "cannot set %s here: it is root's to decide, and %s, or keep the file where only root can write, or mount it read-only", key, d.changeableBy)
}

// checkPlaceholders checks the placeholders in all texts of the variable at *at. It returns why a placeholder is invalid, or
// "". valid lists the allowed placeholders; nil means that the texts are no templates.
func checkPlaceholders(at any, valid []string) string {
	if valid == nil {
		return ""
	}
	template := func(s string) string { return checkTemplate(s, valid) }
	switch at := at.(type) {
	case *string:
		return template(*at)
	case *Paths:
		return checkEach[Paths](template)(at)
	case *[]string:
		return checkEach[[]string](template)(at)
	case *map[string]string:
		for _, name := range sortedKeys(*at) {
			if reason := template((*at)[name]); reason != "" {
				return name + ": " + reason
			}
		}
	}
	return ""
}

// describeNode describes the value n in a few words for a message.
func describeNode(n *yaml.Node) string {
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind != yaml.ScalarNode:
		return "something else"
	case tag == "!!null":
		return "nothing"
	case tag == "!!bool":
		return "the boolean " + quoteShort(n.Value, false)
	case tag == "!!int" || tag == "!!float":
		return "the number " + quoteShort(n.Value, false)
	}
	return "the text " + quoteShort(n.Value, true)
}

// quoteShort returns a value for a message: on one line, cut if it is long, and in quotes if quotes is true.
func quoteShort(s string, quotes bool) string {
	const limit = 40
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	q := strconv.Quote(s)
	if !quotes {
		q = q[1 : len(q)-1]
	}
	return q
}

func listKeysText(before string, keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return before + strings.Join(keys, ", ")
}

// withArticle puts "a" or "an" before what, unless what is a plural, a list of choices or "text".
func withArticle(what string) string {
	switch {
	case strings.HasPrefix(what, "text"), strings.HasSuffix(what, "s"), strings.Contains(what, ", "), strings.Contains(what, " or "):
		return what
	case strings.ContainsRune("aeio", rune(what[0])):
		return "an " + what
	default:
		return "a " + what
	}
}
