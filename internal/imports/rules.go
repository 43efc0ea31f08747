package imports

import (
	"cmp"
	_ "embed" // for the table of rules
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"

	"hinit/internal/config"
)

// setting is one setting of the other supervisor: a key of a mapping, a key of a section, or a file in a directory.
type setting struct {
	sourceRef
	name, value string     // name and value of the setting; the value of a list or a mapping is ""
	node        *yaml.Node // the value as YAML; nil in other formats
	used        bool       // an importer has read the setting, see [section.useSetting]
}

// sourceRef says where a setting stands: its place, and its full name for notes.
type sourceRef struct {
	place
	where string // key, section or file; "" in a note about the whole place
}

// rule says how to import the settings with certain names. A setting becomes a key of hinit.yaml or a note, is imported by a
// function, or is left out.
type rule struct {
	name  string                  // regular expression for the names of the settings
	key   string                  // key of hinit.yaml to set; "": none
	when  func(value string) bool // the rule does nothing for other values; nil: it is for all
	value string                  // value of the key; "": the value of the setting
	// function that converts the value; nil: the value is unchanged. The text of its error becomes a note
	convertText func(value string) (string, error)
	convertNode func(e setting) any                       // function that converts a value that is a list or a mapping
	note        string                                    // why the setting is left out or changed; %s is the setting's value
	nested      rules                                     // rules for the settings in a mapping
	convert     func(im *importer, s *service, e setting) // function that imports the setting; nil if the other fields define the import
}

// rules are tried in order, and after them the rules in [otherWays]. The first whose name matches is used.
type rules []rule

// apply imports settings: each sets keys of s, or adds a note, as the first matching rule in list says. If no rule matches, apply
// adds a note.
func (im *importer) apply(list rules, s *service, settings ...setting) {
	for _, e := range settings {
		if im.limitExceeded { // the import fails
			return
		}
		switch r := list.ruleFor(e); {
		case r.convert != nil:
			s.recordPlace(r.key, e.place)
			r.convert(im, s, e)
		case r.nested != nil:
			im.apply(r.nested, s, e.keys()...)
		default:
			im.applyRule(r, e, func(value any) { s.setAt(r.key, e.place, value) })
		}
	}
}

// ruleTable has the rules that need no code of their own, in sections; its head says how to write one.
//
//go:embed rules.txt
var ruleTable string

// ruleLine matches a line of ruleTable.
var ruleLine = regexp.MustCompile(`^(\S+?)(?: if (not )?([^=:]*?))?(?: = (\S+?)(?: (\w+))?)?(?: by (\w+))?(?:: (.*))?$`)

// conversions has the functions that ruleTable names after "by".
var conversions = map[string]func(value string) (string, error){
	"seconds": seconds, "milliseconds": durationIn("milliseconds", time.Millisecond), "days": durationIn("days", day), "timeSpan": timeSpan,
	"every":      func(interval string) (string, error) { return "@every " + interval, nil },
	"signalName": signalName, "fixedLimit": fixedLimit, "autorestart": autorestart, "megabytes": megabytes,
}

// rulesOf returns the rules in a section of ruleTable.
func rulesOf(section string) (list rules) {
	_, text, _ := strings.Cut(ruleTable, "["+section+"]\n")
	text, _, _ = strings.Cut(text, "\n\n")
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		part := ruleLine.FindStringSubmatch(line)
		if line[0] == '#' || part == nil { // a test finds lines that don't match
			continue
		}
		r := rule{name: part[1], key: part[4], value: part[5], convertText: conversions[part[6]], note: part[7]}
		switch words := strings.Fields(part[3]); {
		case part[3] == "true":
			r.when = isTrue
		case part[3] == "false":
			r.when = isFalse
		case part[2] != "":
			r.when = noneOf(words...)
		case part[3] != "":
			r.when = oneOf(words...)
		}
		list = append(list, r)
	}
	return list
}

// patterns has the compiled expressions of the rules used so far, by their text. To compile one for each setting takes too long.
var patterns sync.Map

// ruleFor returns the first rule for a setting, or one with the note that hinit has nothing like it.
func (list rules) ruleFor(e setting) rule {
	for _, r := range slices.Concat(list, otherWays) {
		pattern, compiled := patterns.Load(r.name)
		if !compiled {
			pattern, _ = patterns.LoadOrStore(r.name, regexp.MustCompile("^(?:"+r.name+")$"))
		}
		if pattern.(*regexp.Regexp).MatchString(e.name) {
			return r
		}
	}
	if e.value != "" {
		return rule{note: "hinit has nothing like this setting; hinit config schema lists what it has (%s)"}
	}
	return rule{note: "hinit has nothing like this setting; hinit config schema lists what it has"}
}

// applyRule converts the value of a setting as the rule says, and passes the result to set. If the rule leaves the setting out or
// changes it, applyRule adds a note with the reason.
func (im *importer) applyRule(r rule, e setting, set func(value any)) {
	var err error
	switch {
	case r.when != nil && !r.when(e.value):
		return
	case r.note != "":
		im.note(e.sourceRef, "%s", strings.ReplaceAll(r.note, "%s", oneLine(e.value)))
	case r.convertNode != nil:
		set(r.convertNode(e))
		return
	case r.convertText != nil:
		if e.value, err = r.convertText(e.value); err != nil {
			im.note(e.sourceRef, "%v", err)
		}
	}
	if value := cmp.Or(r.value, e.value); r.key != "" && value != "" {
		set(value)
	}
}

// constantDelay returns a convert function for a setting with one delay for all restarts. read converts the value to a duration.
func constantDelay(read func(string) (string, error)) func(*importer, *service, setting) {
	return func(im *importer, s *service, e setting) {
		im.applyRule(rule{key: "restart.initial", convertText: read}, e, func(delay any) {
			s.setAt("restart.initial", e.place, delay)
			s.set("restart.max", cmp.Or(s.values["restart.max"], delay)) // RestartMaxDelaySec of systemd may precede
			s.set("restart.factor", "1")
		})
	}
}

// addCodes returns a convert function that adds the exit codes in a setting to the list at key. separators are the characters
// that may stand between two codes.
func addCodes(key, separators string) func(*importer, *service, setting) {
	return func(im *importer, s *service, e setting) {
		words := strings.FieldsFunc(e.value, func(r rune) bool { return strings.ContainsRune(separators, r) })
		words = slices.DeleteFunc(words, func(word string) bool { return word == "0" })
		codes := successExitCodes(words)
		s.setAt(key, e.place, append(s.list(key), codes...))
		if len(codes) < len(words) {
			im.note(e.sourceRef, "hinit.yaml has numbers for exit codes; signals and names are left out (%s)", e.value)
		}
	}
}

var seconds = durationIn("seconds", time.Second)

// durationIn returns a convertText function that converts a number of units to a duration such as "30s". 0 becomes "", the
// default.
func durationIn(units string, unit time.Duration) func(string) (string, error) {
	return func(value string) (string, error) {
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		switch {
		case n > 0 && n*unit.Seconds() <= 1e8:
			return durationText(time.Duration(n * float64(unit))), nil
		case err == nil && n == 0:
			return "", nil
		}
		return "", fmt.Errorf("%q is no number of %s from 0 on; write it into hinit.yaml", oneLine(value), units)
	}
}

// durationText returns a duration as text, without parts that are zero: "1h" in place of "1h0m0s".
func durationText(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// signalName returns the name of the signal that value names or numbers. A signal that hinit.yaml does not accept is an error.
func signalName(value string) (name string, err error) {
	name = strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(value)), "SIG")
	if byNumber, is := map[string]string{"15": "TERM", "2": "INT", "1": "HUP", "3": "QUIT", "10": "USR1", "12": "USR2", "9": "KILL"}[name]; is {
		name = byNumber
	}
	if !slices.Contains(config.Signals, name) {
		return "", fmt.Errorf("hinit does not stop with %s; TERM is taken", value)
	}
	return name, nil
}

// enabledValue returns the value of the key enabled: "false" if off is true, and otherwise "", the default.
func enabledValue(off bool) string { return lo.Ternary(off, "false", "") }

// successExitCodes returns the words of list that are exit codes from 1 to 255. Other words can't be success codes in
// hinit.yaml.
func successExitCodes(list []string) []string {
	return lo.FilterMap(list, func(code string, _ int) (string, bool) {
		n, err := strconv.Atoi(strings.TrimSpace(code))
		return strconv.Itoa(n), err == nil && n > 0 && n < 256
	})
}

func isTrue(value string) bool {
	return slices.Contains([]string{"true", "on", "yes", "y", "t", "1"}, strings.ToLower(strings.TrimSpace(value)))
}

func isFalse(value string) bool {
	return slices.Contains([]string{"false", "off", "no", "n", "f", "0"}, strings.ToLower(strings.TrimSpace(value)))
}

// oneOf returns a function for rule.when: is the value one of words? noneOf returns the opposite.
func oneOf(words ...string) func(string) bool {
	return func(value string) bool { return slices.Contains(words, value) }
}

func noneOf(words ...string) func(string) bool {
	return func(value string) bool { return !slices.Contains(words, value) }
}

// otherWays has notes on settings that hinit does not have, from several supervisors. Each says how to reach the same goal with
// hinit.
var otherWays = rulesOf("any")

// oneLine shortens a text to at most 80 characters of its first line.
func oneLine(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	if r := []rune(line); len(r) > 80 {
		line, more = string(r[:80]), true
	}
	if more {
		line += "…"
	}
	return line
}
