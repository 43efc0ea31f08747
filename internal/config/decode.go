package config

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"hinit/internal/trust"
)

// decoder walks a YAML document along the schema.
type decoder struct {
	problems *problems
	origins  map[string]origin
	doubt    *trust.Doubt // who else can change the file; nil: only root can, or there is nobody to protect root from
}

// origin is where a value came from. The zero origin is a built-in default.
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

// entry is one key of a mapping with its value, aliases resolved.
type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// entries returns the keys of the mapping n, whose own key is path ("" for the document). Anything else than a mapping,
// a key that is no text and a key given twice are problems; a mapping left empty has no keys.
func (d *decoder) entries(n *yaml.Node, path string, keys []string) []entry {
	n = resolve(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		what := path
		if what == "" {
			what = "the file"
		}
		d.problems.at(n.Line, "cannot read %s: expected a mapping%s, got %s", what, listKeys(" with keys ", keys), describe(n))
		return nil
	}
	var out []entry
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := resolve(n.Content[i])
		switch {
		case k.ShortTag() == "!!merge":
			d.problems.at(k.Line, "merge keys (<<) are not supported; write the keys out")
			continue
		case k.Kind != yaml.ScalarNode:
			d.problems.at(k.Line, "cannot read %s: expected the name of a key, got %s", join(path, "?"), describe(k))
			continue
		}
		if first, twice := seen[k.Value]; twice {
			d.problems.at(k.Line, "duplicate key %q; it is already set on line %d", join(path, k.Value), first)
			continue
		}
		seen[k.Value] = k.Line
		out = append(out, entry{k.Value, k.Line, resolve(n.Content[i+1])})
	}
	return out
}

// resolve follows an alias. A document may contain itself through one, so a walk must be bounded by the depth of the
// schema and not by that of the document.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// decodeFields reads the mapping n into root. Its keys are those of fields below the path within (which ends in a dot or
// is empty); base is put before them in messages and origins. A key whose path is in other is handed to its function instead.
func decodeFields[T any](d *decoder, n *yaml.Node, base, within string, fields []field[T], root *T, other map[string]func(*yaml.Node)) {
	names := fieldNames(fields, within, other)
	for _, e := range d.entries(n, strings.TrimSuffix(base+within, "."), names) {
		path := within + e.key
		if take, ok := other[path]; ok {
			take(e.value)
			continue
		}
		i := slices.IndexFunc(fields, func(f field[T]) bool { return f.path == path })
		switch {
		case i >= 0:
			decodeField(d, e, base, &fields[i], root)
		case slices.Contains(names, e.key):
			decodeFields(d, e.value, base, path+".", fields, root, other)
		default:
			d.unknown(e.line, base+within, e.key, names, fieldPaths(fields))
		}
	}
}

// fieldNames returns the keys that are valid directly below the path within.
func fieldNames[T any](fields []field[T], within string, other map[string]func(*yaml.Node)) []string {
	var names []string
	for _, f := range fields {
		if rest, ok := strings.CutPrefix(f.path, within); ok {
			name, _, _ := strings.Cut(rest, ".")
			names = append(names, name)
		}
	}
	for path := range other {
		if rest, ok := strings.CutPrefix(path, within); ok {
			name, _, _ := strings.Cut(rest, ".")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func fieldPaths[T any](fields []field[T]) []string {
	paths := make([]string, len(fields))
	for i, f := range fields {
		paths[i] = f.path
	}
	slices.Sort(paths)
	return paths
}

// unknown reports the key below prefix and the valid one that was probably meant: a neighbour that is spelled nearly the
// same, or else a key of the same name elsewhere below the same root.
func (d *decoder) unknown(line int, prefix, key string, names, paths []string) {
	if near := nearest(key, names); near != "" {
		d.problems.at(line, "unknown key %q; did you mean %q?", prefix+key, prefix+near)
		return
	}
	root := ""
	if rest, ok := strings.CutPrefix(prefix, "services."); ok {
		name, _, _ := strings.Cut(rest, ".")
		root = "services." + name + "."
	}
	for _, p := range paths {
		if p == key || strings.HasSuffix(p, "."+key) {
			d.problems.at(line, "unknown key %q; did you mean %q?", prefix+key, root+p)
			return
		}
	}
	d.problems.at(line, "unknown key %q%s", prefix+key, listKeys("; known here: ", names))
}

// decodeField reads one value, checks it and notes where it came from.
func decodeField[T any](d *decoder, e entry, base string, f *field[T], root *T) {
	key := base + f.path
	at := f.at(root)
	was := copyOf(at)
	before := len(d.problems.list)
	d.value(e.value, key, at, f)
	if len(d.problems.list) > before {
		return
	}
	if f.check != nil {
		if reason := f.check(at); reason != "" {
			d.problems.at(e.value.Line, "cannot set %s: %s", key, reason)
			return
		}
	}
	if reason := checkHoles(at, f.holes); reason != "" {
		d.problems.at(e.value.Line, "cannot set %s: %s", key, reason)
		return
	}
	if f.privileged && d.doubt != nil && !reflect.DeepEqual(was, copyOf(at)) {
		d.problems.at(e.line, "cannot set %s here: it is root's to decide, and %s, or keep the file where only root can write, or mount it read-only",
			key, d.doubt)
		return
	}
	if f.alias != "" {
		key = base + f.alias
	}
	if first, twice := d.origins[key]; twice {
		d.problems.at(e.line, "cannot set %s: it is already set on line %d", key, first.line)
		return
	}
	switch at.(type) {
	case *map[string]string, *map[string]uint64: // noted name by name
	default:
		d.origins[key] = origin{file: d.problems.file, line: e.line}
	}
}

// copyOf returns the value at a schema pointer. A list is replaced as a whole when it is decoded, a mapping is not.
func copyOf(at any) any {
	switch at := at.(type) {
	case *map[string]string:
		return maps.Clone(*at)
	case *map[string]uint64:
		return maps.Clone(*at)
	}
	return reflect.ValueOf(at).Elem().Interface()
}

// describer is what value needs of a field, whatever its root.
type describer interface{ expects() string }

func (f *field[T]) expects() string {
	if f.typ != "" {
		return strings.ReplaceAll(f.typ, "`", "")
	}
	return f.typeName(new(T))
}

// value decodes n into the value at a schema pointer.
func (d *decoder) value(n *yaml.Node, key string, at any, f describer) {
	fail := func(n *yaml.Node, expected string) {
		d.problems.at(n.Line, "cannot set %s: expected %s, got %s", key, expected, describe(n))
	}
	tag := n.ShortTag()
	scalar := n.Kind == yaml.ScalarNode
	switch at := at.(type) {
	case *string:
		if text, ok := d.text(n, key, f.expects()); ok {
			*at = text
		}
	case *bool:
		if !scalar || tag != "!!bool" {
			fail(n, "true or false")
			return
		}
		*at = strings.EqualFold(n.Value, "true")
	case *int:
		if i, ok := integer(n); ok {
			*at = i
		} else {
			fail(n, wholeNumber(key, n))
		}
	case *float64:
		f, err := strconv.ParseFloat(n.Value, 64)
		if !scalar || tag != "!!int" && tag != "!!float" || err != nil {
			fail(n, "a number")
			return
		}
		*at = f
	case *time.Duration:
		switch dur, err := time.ParseDuration(n.Value); {
		case scalar && tag == "!!int":
			d.problems.at(n.Line, "cannot set %s: expected a duration such as 30s, got %s; write %q", key, describe(n), n.Value+"s")
		case !scalar || tag != "!!str" || err != nil:
			fail(n, "a duration such as 30s")
		default:
			*at = dur
		}
	case *syscall.Signal:
		sig, ok := parseSignal(n.Value)
		if !scalar || !ok {
			fail(n, "one of "+strings.Join(signalNames(), ", "))
			return
		}
		*at = sig
	case *[]string:
		d.words(n, key, at)
	case *[]int:
		d.numbers(n, key, at)
	case *map[string]string:
		d.variables(n, key, *at)
	case *map[string]uint64:
		d.limits(n, key, *at)
	case *[]Hook:
		d.hooks(n, key, at)
	}
}

// text returns what a scalar says, as it is written: a number is text too, but the words that YAML takes for something
// else (true, null) must be quoted to be text.
func (d *decoder) text(n *yaml.Node, key, expected string) (string, bool) {
	n = resolve(n)
	tag := n.ShortTag()
	switch {
	case n.Kind != yaml.ScalarNode || tag == "!!null" || tag == "!!binary":
		d.problems.at(n.Line, "cannot set %s: expected %s, got %s", key, article(expected), describe(n))
	case tag == "!!bool":
		d.problems.at(n.Line, "cannot set %s: expected %s, got %s; write %q in quotes", key, article(expected), describe(n), n.Value)
	case strings.Contains(n.Value, "\x00"):
		d.problems.at(n.Line, "cannot set %s: it contains a NUL byte", key)
	default:
		return n.Value, true
	}
	return "", false
}

func (d *decoder) words(n *yaml.Node, key string, at *[]string) {
	if n.Kind != yaml.SequenceNode {
		d.problems.at(n.Line, "cannot set %s: expected a list of words such as [\"sleep\", \"60\"], got %s", key, describe(n))
		return
	}
	list := make([]string, 0, len(n.Content))
	for _, item := range n.Content {
		if text, ok := d.text(item, key, "words"); ok {
			list = append(list, text)
		}
	}
	*at = list
}

// hooks reads a list of hooks, which replaces the one that was there.
func (d *decoder) hooks(n *yaml.Node, key string, at *[]Hook) {
	if n.Kind != yaml.SequenceNode {
		d.problems.at(n.Line, "cannot set %s: expected a list of hooks such as [{command: [\"sync\"]}], got %s", key, describe(n))
		return
	}
	fields := hookFields()
	list := make([]Hook, 0, len(n.Content))
	for i, item := range n.Content {
		item = resolve(item)
		h, prefix := newHook(), key+"."+strconv.Itoa(i)+"."
		if item.Kind != yaml.MappingNode {
			d.problems.at(item.Line, "cannot set %s: expected a hook such as {command: [\"sync\"]}, got %s", strings.TrimSuffix(prefix, "."), describe(item))
			continue
		}
		before := len(d.problems.list)
		decodeFields(d, item, prefix, "", fields, &h, nil)
		if h.Command == nil && len(d.problems.list) == before {
			d.problems.at(item.Line, "cannot use %s: its command is missing", strings.TrimSuffix(prefix, "."))
		}
		list = append(list, h)
	}
	*at = list
}

func (d *decoder) numbers(n *yaml.Node, key string, at *[]int) {
	if n.Kind != yaml.SequenceNode {
		d.problems.at(n.Line, "cannot set %s: expected a list of numbers such as [78], got %s", key, describe(n))
		return
	}
	list := make([]int, 0, len(n.Content))
	for _, item := range n.Content {
		item = resolve(item)
		i, ok := integer(item)
		if !ok {
			d.problems.at(item.Line, "cannot set %s: expected whole numbers, got %s", key, describe(item))
			continue
		}
		list = append(list, i)
	}
	*at = list
}

func (d *decoder) variables(n *yaml.Node, key string, vars map[string]string) {
	for _, e := range d.entries(n, key, nil) {
		if !varName(e.key) {
			d.problems.at(e.line, "cannot set %s: %q cannot be the name of an environment variable", key, e.key)
			continue
		}
		if text, ok := d.text(e.value, key+"."+e.key, "text"); ok {
			vars[e.key] = text
			d.origins[key+"."+e.key] = origin{file: d.problems.file, line: e.line}
		}
	}
}

func (d *decoder) limits(n *yaml.Node, key string, limits map[string]uint64) {
	for _, e := range d.entries(n, key, limitNames) {
		if !slices.Contains(limitNames, e.key) {
			d.unknown(e.line, key+".", e.key, limitNames, nil)
			continue
		}
		switch tag := e.value.ShortTag(); {
		case e.value.Kind == yaml.ScalarNode && tag == "!!str" && e.value.Value == "unlimited":
			limits[e.key] = Unlimited
		case e.value.Kind == yaml.ScalarNode && tag == "!!int":
			// The largest number would read as unlimited; nobody means it as a number.
			u, err := strconv.ParseUint(e.value.Value, 0, 64)
			if err != nil || u > math.MaxInt64 {
				d.problems.at(e.value.Line, "cannot set %s.%s: expected a number from 0 to %d or unlimited, got %s",
					key, e.key, int64(math.MaxInt64), describe(e.value))
				continue
			}
			limits[e.key] = u
		default:
			size, isSize := parseSize(e.value)
			switch {
			case isSize && slices.Contains(byteLimits, e.key):
				limits[e.key] = size
			case isSize:
				d.problems.at(e.value.Line, "cannot set %s.%s: expected a number or unlimited, got %s; it is no size in bytes, write %d or %d",
					key, e.key, describe(e.value), size, decimal(e.value.Value))
				continue
			default:
				d.problems.at(e.value.Line, "cannot set %s.%s: expected a number%s or unlimited, got %s", key, e.key, sizeToo(e.key), describe(e.value))
				continue
			}
		}
		d.origins[key+"."+e.key] = origin{file: d.problems.file, line: e.line}
	}
}

// byteLimits are the limits that count bytes.
var byteLimits = []string{"as", "core", "data", "fsize", "memlock", "msgqueue", "rss", "stack"}

func sizeToo(limit string) string {
	if slices.Contains(byteLimits, limit) {
		return ", a size such as 512M or 2G,"
	}
	return ""
}

// sizes are the suffixes of a size; each is 1024 times the one before.
const sizes = "KMGT"

// parseSize reads a size such as 512M, 2G or 2GiB.
func parseSize(n *yaml.Node) (uint64, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return 0, false
	}
	number, power, ok := cutSize(n.Value)
	if !ok || number > math.MaxInt64>>(10*power) {
		return 0, false
	}
	return number << (10 * power), true
}

// cutSize takes a size apart: the number, and how often it is multiplied.
func cutSize(text string) (number uint64, power int, ok bool) {
	digits := strings.TrimRight(text, "BbiKMGTkmgt")
	suffix := strings.ToUpper(text[len(digits):])
	if suffix = strings.TrimSuffix(strings.TrimSuffix(suffix, "B"), "I"); len(suffix) != 1 {
		return 0, 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, strings.Index(sizes, suffix) + 1, err == nil && strings.Contains(sizes, suffix)
}

// decimal is a size with suffixes that are 1000 times the one before.
func decimal(text string) uint64 {
	number, power, _ := cutSize(text)
	for range power {
		number *= 1000
	}
	return number
}

// wholeNumber says what is expected of a number whose key names a unit, where a size was given.
func wholeNumber(key string, n *yaml.Node) string {
	size, isSize := parseSize(n)
	for suffix, unit := range map[string]struct {
		name  string
		shift int
	}{"_mb": {"megabytes", 20}, "_kb": {"kilobytes", 10}} {
		if !strings.HasSuffix(key, suffix) {
			continue
		}
		if isSize && size>>unit.shift > 0 {
			return fmt.Sprintf("a whole number of %s, here %d", unit.name, size>>unit.shift)
		}
		return "a whole number of " + unit.name
	}
	return "a whole number"
}

func integer(n *yaml.Node) (int, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		return 0, false
	}
	i, err := strconv.ParseInt(n.Value, 0, 0)
	return int(i), err == nil
}

// checkHoles checks the placeholders of every text at a schema pointer.
func checkHoles(at any, holes []string) string {
	if holes == nil {
		return ""
	}
	switch at := at.(type) {
	case *string:
		return checkTemplate(*at, holes)
	case *[]string:
		for _, s := range *at {
			if reason := checkTemplate(s, holes); reason != "" {
				return reason
			}
		}
	case *map[string]string:
		for _, name := range sortedKeys(*at) {
			if reason := checkTemplate((*at)[name], holes); reason != "" {
				return name + ": " + reason
			}
		}
	}
	return ""
}

// describe says in words what stands at n, on one line and not at length.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!null":
			return "nothing"
		case "!!bool":
			return "the boolean " + quoteShort(n.Value, false)
		case "!!int", "!!float":
			return "the number " + quoteShort(n.Value, false)
		default:
			return "the text " + quoteShort(n.Value, true)
		}
	default:
		return "something else"
	}
}

// quoteShort shortens a long value and keeps it on one line.
func quoteShort(s string, quotes bool) string {
	const most = 40
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	q := strconv.Quote(s)
	if !quotes {
		q = q[1 : len(q)-1]
	}
	return q
}

func listKeys(before string, keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return before + strings.Join(keys, ", ")
}

// article puts "a" or "an" before the name of a single thing.
func article(what string) string {
	switch {
	case strings.HasPrefix(what, "text"), strings.HasSuffix(what, "s"), strings.Contains(what, ", "):
		return what
	case strings.ContainsRune("aeio", rune(what[0])):
		return "an " + what
	default:
		return "a " + what
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
