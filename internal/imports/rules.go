package imports

import (
	"cmp"
	_ "embed"
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

// setting is one setting of the other supervisor: a key in a mapping, a key in a section, or a file in a directory.
type setting struct {
	sourceRef
	name, value string     // name and value of the setting; the value of a list or a mapping is ""
	node        *yaml.Node // value as YAML; nil if the format isn't YAML
	used        bool       // whether an importer has read the setting, see [section.useSetting]
}

// sourceRef identifies a setting in the source: by its place, and by its full name for notes.
type sourceRef struct {
	place
	where string // key, section or file; "" in a note about the whole place
}

// rule says how to import settings with a matching name. Such a setting becomes a key of hinit.yaml or a note, is imported by a
// function, or is left out.
type rule struct {
	name    string                  // regular expression for the names of the settings
	key     string                  // key of hinit.yaml to set; "": none
	matches func(value string) bool // reports whether the rule handles this value; nil: all values
	value   string                  // value of the key; "": the value of the setting
	// converts the value; nil leaves it unchanged. The text of an error becomes a note
	convertText func(value string) (string, error)
	convertNode func(e setting) any                       // converts a list or a mapping
	note        string                                    // reason why the setting is left out or changed; %s stands for the value of the setting
	nested      rules                                     // rules for the settings in a nested mapping
	convert     func(im *importer, s *service, e setting) // imports the setting; nil if the other fields suffice
}

// rules is a list of rules. The first rule with a matching name is used. The rules in [alternatives] come last.
type rules []rule

// apply imports settings into s, each by its first matching rule in list. It adds a note about a setting without a rule.
func (im *importer) apply(list rules, s *service, settings ...setting) {
	for _, e := range settings {
		if im.limitExceeded { // the import fails anyway
			return
		}
		switch r := list.ruleFor(e); {
		case r.convert != nil:
			s.recordPlace(r.key, e.place)
			r.convert(im, s, e)
		case r.nested != nil:
			im.apply(r.nested, s, e.keys()...)
		default:
			im.applyRule(r, e, func(value any) { s.setFrom(r.key, e.place, value) })
		}
	}
}

// ruleTable has the rules that need no Go code, in sections. The beginning of the file explains how to write a rule.
//
//go:embed rules.txt
var ruleTable string

// ruleLine matches a line of ruleTable.
var ruleLine = regexp.MustCompile(`^(\S+?)(?: if (not )?([^=:]*?))?(?: = (\S+?)(?: (\w+))?)?(?: by (\w+))?(?:: (.*))?$`)

// conversions maps the names after "by" in ruleTable to functions.
var conversions = map[string]func(value string) (string, error){
	"seconds": parseSeconds, "milliseconds": durationParser("milliseconds", time.Millisecond), "days": durationParser("days", day), "timeSpan": parseTimeSpan,
	"every":     func(interval string) (string, error) { return "@every " + interval, nil },
	"eitherDay": checkCronDays, "signalName": signalName, "fixedLimit": parseLimit, "autorestart": convertAutorestart, "megabytes": parseMegabytes,
}

// parseRules returns the rules in a section of ruleTable.
func parseRules(section string) (list rules) {
	_, text, _ := strings.Cut(ruleTable, "["+section+"]\n")
	text, _, _ = strings.Cut(text, "\n\n")
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		part := ruleLine.FindStringSubmatch(line)
		if line[0] == '#' || part == nil { // a test makes sure that each rule matches
			continue
		}
		r := rule{name: part[1], key: part[4], value: part[5], convertText: conversions[part[6]], note: part[7]}
		switch words := strings.Fields(part[3]); {
		case part[3] == "true":
			r.matches = isTrue
		case part[3] == "false":
			r.matches = isFalse
		case part[2] != "":
			r.matches = noneOf(words...)
		case part[3] != "":
			r.matches = oneOf(words...)
		}
		list = append(list, r)
	}
	return list
}

var compiledPatterns sync.Map

// ruleFor returns the first rule for a setting. Without a match, the rule only adds the note that hinit has no such setting.
func (list rules) ruleFor(e setting) rule {
	for _, r := range slices.Concat(list, alternativeRules) {
		pattern, compiled := compiledPatterns.Load(r.name)
		if !compiled {
			pattern, _ = compiledPatterns.LoadOrStore(r.name, regexp.MustCompile("^(?:"+r.name+")$"))
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

// applyRule converts the value of a setting by the rule and passes the result to set. If the rule leaves out or changes the
// setting, applyRule adds a note with the reason.
func (im *importer) applyRule(r rule, e setting, set func(value any)) {
	var err error
	switch {
	case r.matches != nil && !r.matches(e.value):
		return
	case r.note != "":
		im.addNote(e.sourceRef, "%s", strings.ReplaceAll(r.note, "%s", oneLine(e.value)))
	case r.convertNode != nil:
		set(r.convertNode(e))
		return
	case r.convertText != nil:
		if e.value, err = r.convertText(e.value); err != nil {
			im.addNote(e.sourceRef, "%v", err)
		}
	}
	if value := cmp.Or(r.value, e.value); r.key != "" && value != "" {
		set(value)
	}
}

// constantRestartDelay returns a function for rule.convert that imports a setting as the delay of all restarts. read converts the
// value to a duration.
func constantRestartDelay(read func(string) (string, error)) func(*importer, *service, setting) {
	return func(im *importer, s *service, e setting) {
		im.applyRule(rule{key: "restart.initial", convertText: read}, e, func(delay any) {
			s.setFrom("restart.initial", e.place, delay)
			s.set("restart.max", cmp.Or(s.values["restart.max"], delay)) // RestartMaxDelaySec of systemd may come first
			s.set("restart.factor", "1")
		})
	}
}

// addExitCodes returns a function for rule.convert that adds the exit codes in a setting to the list at key. separators are the
// characters between two codes.
func addExitCodes(key, separators string) func(*importer, *service, setting) {
	return func(im *importer, s *service, e setting) {
		words := strings.FieldsFunc(e.value, func(r rune) bool { return strings.ContainsRune(separators, r) })
		words = slices.DeleteFunc(words, func(word string) bool { return word == "0" })
		codes := successExitCodes(words)
		s.setFrom(key, e.place, append(s.list(key), codes...))
		if len(codes) < len(words) {
			im.addNote(e.sourceRef, "hinit.yaml has numbers for exit codes; signals and names are left out (%s)", e.value)
		}
	}
}

var parseSeconds = durationParser("seconds", time.Second)

// durationParser returns a function for rule.convertText that converts a number of units to a duration such as "30s". It converts
// 0 to "", the default.
func durationParser(units string, unit time.Duration) func(string) (string, error) {
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

func durationText(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

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

// enabledValue returns the value for the key enabled: "false" if off is true, otherwise "", the default.
func enabledValue(off bool) string { return lo.Ternary(off, "false", "") }

// successExitCodes returns the exit codes from 1 to 255 in list. hinit.yaml accepts no other success codes.
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

// oneOf returns a function for rule.when that reports whether the value is one of words.
func oneOf(words ...string) func(string) bool {
	return func(value string) bool { return slices.Contains(words, value) }
}

func noneOf(words ...string) func(string) bool {
	return func(value string) bool { return !slices.Contains(words, value) }
}

// alternativeRules has notes about settings of several supervisors that hinit lacks. Each note names a way to the same goal with
// hinit.
var alternativeRules = parseRules("any")

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
