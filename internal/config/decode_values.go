package config

import (
	"errors"
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
	"golang.org/x/sys/unix"
)

// decodeValue decodes n into the variable at *at, by its Go type. text describes a valid text, for messages.
func (d *decoder) decodeValue(n *yaml.Node, key string, at any, text string) {
	fail := func(n *yaml.Node, expected string) {
		d.problems.reportAtLine(n.Line, "cannot set %s: expected %s, got %s", key, expected, describeNode(n))
	}
	tag := n.ShortTag()
	scalar := n.Kind == yaml.ScalarNode
	switch at := at.(type) {
	case *string:
		if text, ok := d.decodeText(n, key, text); ok {
			*at = text
		}
	case *bool:
		if !scalar || tag != "!!bool" {
			fail(n, "true or false")
			return
		}
		*at = strings.EqualFold(n.Value, "true")
	case *Switch:
		d.decodeSwitch(n, key, at)
	case *int:
		i, ok := parseInteger(n)
		_, err := strconv.ParseInt(n.Value, 0, 0)
		switch {
		case ok:
			*at = i
		case scalar && tag != "!!str" && errors.Is(err, strconv.ErrRange):
			fail(n, "a number with fewer digits")
		default:
			fail(n, expectedWholeNumber(key, n))
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
			d.problems.reportAtLine(n.Line, "cannot set %s: expected a duration such as 30s, got %s; write %q", key, describeNode(n), n.Value+"s")
		case !scalar || tag != "!!str" || err != nil:
			d.problems.reportAtLine(n.Line, "cannot set %s: expected a duration such as 30s, got %s%s", key, describeNode(n), durationHint(n.Value))
		default:
			*at = dur
		}
	case *syscall.Signal:
		sig, ok := parseSignal(n.Value)
		if !scalar || !ok {
			fail(n, "one of "+strings.Join(Signals, ", "))
			return
		}
		*at = sig
	case *[]string:
		*at = d.decodeWords(n, key)
	case *[]int:
		*at = d.decodeNumbers(n, key)
	case *map[string]string:
		*at = d.decodeVariables(n, key, maps.Clone(*at))
	case *map[string]ResourceLimit:
		*at = d.decodeLimits(n, key, maps.Clone(*at))
	case *Paths:
		d.decodePaths(n, key, at)
	case *Bytes:
		d.decodeBytes(n, key, at)
	case *[]Hook:
		*at = decodeList(d, n, key, "hooks such as [{command: [\"sync\"]}]", d.decodeHook)
	case *[]Need:
		*at = d.decodeNeeds(n, key)
	case *[]Check:
		*at = d.decodeChecks(n, key)
	case *Actions:
		*at = d.decodeActions(n, key)
	}
}

// decodeText returns a scalar as text. A number is valid. true and null, which YAML reads as other types, need quotes.
func (d *decoder) decodeText(n *yaml.Node, key, expected string) (string, bool) {
	tag := n.ShortTag()
	switch {
	case n.Kind != yaml.ScalarNode || tag == "!!null" || tag == "!!binary":
		d.problems.reportAtLine(n.Line, "cannot set %s: expected %s, got %s", key, withArticle(expected), describeNode(n))
	case tag == "!!bool":
		d.problems.reportAtLine(n.Line, "cannot set %s: expected %s, got %s; write %q in quotes", key, withArticle(expected), describeNode(n), n.Value)
	case strings.Contains(n.Value, "\x00"):
		d.problems.reportAtLine(n.Line, "cannot set %s: it contains a NUL byte", key)
	default:
		return n.Value, true
	}
	return "", false
}

// decodeList decodes a list, which replaces the default. It calls the function one for each item, with a key that ends in the
// item's index. example describes a valid list, for messages.
func decodeList[T any](d *decoder, n *yaml.Node, key, example string, one func(item *yaml.Node, key string) (T, bool)) []T {
	if n.Kind != yaml.SequenceNode {
		d.problems.reportAtLine(n.Line, "cannot set %s: expected a list of %s, got %s", key, example, describeNode(n))
		return nil
	}
	out := make([]T, 0, len(n.Content))
	for i, item := range n.Content {
		if value, ok := one(resolveAlias(item), key+"."+strconv.Itoa(i)); ok {
			out = append(out, value)
		}
	}
	return out
}

func (d *decoder) decodeWords(n *yaml.Node, key string) []string {
	return decodeList(d, n, key, "words such as [\"sleep\", \"60\"]", func(item *yaml.Node, _ string) (string, bool) { return d.decodeText(item, key, "words") })
}

// decodeItem decodes one mapping of a list into root, and reports whether it is valid. example describes a valid item, for
// messages.
func decodeItem[T any](d *decoder, n *yaml.Node, key, example string, keys []Key, root *T) (ok bool) {
	if n.Kind != yaml.MappingNode {
		d.problems.reportAtLine(n.Line, "cannot set %s: expected %s, got %s", key, example, describeNode(n))
		return false
	}
	before := len(d.problems.list)
	d.decodeMapping(n, key+".", "", keys, root, nil)
	return len(d.problems.list) == before
}

func (d *decoder) decodeHook(n *yaml.Node, key string) (h Hook, ok bool) {
	h = NewHook()
	if ok = decodeItem(d, n, key, "a hook such as {command: [\"sync\"]}", Keys[Hook](), &h); ok && h.Command == nil {
		d.problems.reportAtLine(n.Line, "cannot use %s: its command is missing", key)
	}
	return h, ok
}

func (d *decoder) decodeNumbers(n *yaml.Node, key string) []int {
	return decodeList(d, n, key, "numbers such as [78]", func(item *yaml.Node, _ string) (int, bool) {
		i, ok := parseInteger(item)
		if !ok {
			d.problems.reportAtLine(item.Line, "cannot set %s: expected whole numbers, got %s", key, describeNode(item))
		}
		return i, ok
	})
}

// decodeVariables adds the variables in the mapping n to vars.
func (d *decoder) decodeVariables(n *yaml.Node, key string, vars map[string]string) map[string]string {
	for _, e := range d.entries(n, key+".", nil) {
		if !isVariable(e.key) {
			d.problems.reportAtLine(e.line, "cannot set %s: %q cannot be the name of an environment variable", key, e.key)
			continue
		}
		if text, ok := d.decodeText(e.value, key+"."+e.key, "text"); ok {
			vars[e.key] = text
			d.origins[key+"."+e.key] = origin{file: d.problems.file, line: e.line}
		}
	}
	return vars
}

const sizeSuffixes = "KMGT"

// parseSize parses a size such as 512M, 2G or 2GiB. The argument factor is the step between units: 1024, or 1000 for decimal units.
func parseSize(n *yaml.Node, factor uint64) (size uint64, ok bool) {
	digits := strings.TrimRight(n.Value, "BbiKMGTkmgt")
	suffix := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(n.Value[len(digits):]), "B"), "I")
	size, err := strconv.ParseUint(digits, 10, 63)
	if !isTextNode(n) || err != nil || len(suffix) != 1 || !strings.Contains(sizeSuffixes, suffix) {
		return 0, false
	}
	for range strings.Index(sizeSuffixes, suffix) + 1 {
		if size > math.MaxInt64/factor {
			return 0, false
		}
		size *= factor
	}
	return size, true
}

// expectedWholeNumber describes the number that a key expects, for messages. If the key ends in a unit such as _mb and the file
// has a size such as 5M, it suggests the number to write.
func expectedWholeNumber(key string, n *yaml.Node) string {
	expected, unit := "a whole number", uint64(0)
	switch {
	case strings.HasSuffix(key, "_mb"):
		expected, unit = "a whole number of megabytes", 1<<20
	case strings.HasSuffix(key, "_kb"):
		expected, unit = "a whole number of kilobytes", 1<<10
	}
	if size, isSize := parseSize(n, 1024); isSize && unit > 0 && size >= unit {
		return fmt.Sprintf("%s, here %d", expected, size/unit)
	}
	return expected
}

func parseInteger(n *yaml.Node) (int, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		return 0, false
	}
	i, err := strconv.ParseInt(n.Value, 0, 0)
	return int(i), err == nil
}

// parseSignal parses the name of a stop signal, with or without SIG, in upper or lower case.
func parseSignal(name string) (syscall.Signal, bool) {
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	return unix.SignalNum("SIG" + name), slices.Contains(Signals, name)
}

func isSignal(name string) bool {
	_, known := parseSignal(name)
	return known
}

// JSONValue returns the value at *at in the form of hinit.yaml, ready for encoding/json. A duration, for example, becomes the
// text "60s".
func JSONValue(at any) any {
	switch at := at.(type) {
	case *string, *bool, *int, *float64:
		return reflect.ValueOf(at).Elem().Interface()
	case *Switch:
		if *at == Auto {
			return string(Auto)
		}
		return *at == On
	case *time.Duration:
		return formatDuration(*at)
	case *syscall.Signal:
		return strings.TrimPrefix(unix.SignalName(*at), "SIG")
	case *Bytes:
		return at.Text()
	case *Paths:
		return append([]string{}, *at...)
	case *[]string:
		return append([]string{}, *at...)
	case *[]int:
		return append([]int{}, *at...)
	case *[]Need:
		return jsonNeeds(*at)
	default:
		return nil
	}
}

func jsonLimit(l ResourceLimit) any {
	if l.Soft != l.Hard {
		return fmt.Sprintf("%v:%v", jsonLimit(ResourceLimit{l.Soft, l.Soft}), jsonLimit(ResourceLimit{l.Hard, l.Hard}))
	}
	if l.Soft == Unlimited {
		return "unlimited"
	}
	return l.Soft
}

// formatDuration formats a duration of whole seconds below two minutes as seconds ("60s"), and any other as Go does, without zero
// parts ("1h30m").
func formatDuration(d time.Duration) string {
	if d%time.Second == 0 && d > -2*time.Minute && d < 2*time.Minute {
		return strconv.Itoa(int(d/time.Second)) + "s"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
