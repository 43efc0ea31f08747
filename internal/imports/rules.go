package imports

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	"go.yaml.in/yaml/v3"
)

// setting is a setting of the other supervisor: a key of a mapping or of a section, or a file in a directory.
type setting struct {
	from
	name, value string     // the value is "" for a list or a mapping
	node        *yaml.Node // the value in YAML; nil in other formats
	used        bool       // see [section.take]
}

// from is the origin of a setting: its place, and its whole name in notes.
type from struct {
	place
	where string
}

// rule says how to import a setting: as a key of hinit.yaml, as a note, by a function, or not at all.
type rule struct {
	name     string                             // regular expression for the names of the settings
	key      string                             // key of hinit.yaml
	scalar   func(value string) (string, error) // makes the value of the key; nil for the same value. Its error becomes the note
	compound func(e setting) any                // makes a value that is a list or a mapping
	note     string                             // note that says why the setting is left out; the value replaces %s in it
	nested   rules                              // rules for the settings in this one, which is a mapping
	convert  func(im *importer, s *service, e setting)
}

// rules are tried in their order, and [ways] after them.
type rules []rule

// apply applies to each setting the first rule that matches it. It notes a setting without a rule.
func (im *importer) apply(list rules, s *service, settings ...setting) {
	for _, e := range settings {
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

// ruleFor returns the rule for a setting.
func (list rules) ruleFor(e setting) rule {
	for _, r := range slices.Concat(list, otherWays) {
		if regexp.MustCompile("^(?:" + r.name + ")$").MatchString(e.name) {
			return r
		}
	}
	if e.value != "" {
		return rule{note: "hinit has nothing like this setting; hinit config schema lists what it has (%s)"}
	}
	return rule{note: "hinit has nothing like this setting; hinit config schema lists what it has"}
}

// applyRule calls set with the value of a rule's key, or notes why the value is missing.
func (im *importer) applyRule(r rule, e setting, set func(value any)) {
	var err error
	switch {
	case r.note != "":
		im.note(e.from, "%s", strings.ReplaceAll(r.note, "%s", oneLine(e.value)))
	case r.compound != nil:
		set(r.compound(e))
		return
	case r.scalar != nil:
		if e.value, err = r.scalar(e.value); err != nil {
			im.note(e.from, "%v", err)
		}
	}
	if r.key != "" && e.value != "" {
		set(e.value)
	}
}

// constantDelay imports a time as the delay before each restart.
func constantDelay(read func(string) (string, error)) func(*importer, *service, setting) {
	return func(im *importer, s *service, e setting) {
		im.applyRule(rule{key: "restart.initial", scalar: read}, e, func(delay any) {
			s.setAt("restart.initial", e.place, delay)
			s.set("restart.max", delay)
			s.set("restart.factor", "1")
		})
	}
}

// addCodes adds the exit codes of a value to a list.
func addCodes(key, separators string) func(*importer, *service, setting) {
	return func(im *importer, s *service, e setting) {
		words := strings.FieldsFunc(e.value, func(r rune) bool { return strings.ContainsRune(separators, r) })
		words = slices.DeleteFunc(words, func(word string) bool { return word == "0" })
		codes := exitCodes(words)
		s.setAt(key, e.place, append(s.list(key), codes...))
		if len(codes) < len(words) {
			im.note(e.from, "hinit.yaml has numbers for exit codes; signals and names are left out (%s)", e.value)
		}
	}
}

// seconds makes a duration from a number of seconds.
func seconds(value string) (string, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || n <= 0 || n > 1e8 {
		if err == nil && n == 0 {
			return "", nil
		}
		return "", fmt.Errorf("%q is no number of seconds from 0 on; write it into hinit.yaml", oneLine(value))
	}
	return durationText(time.Duration(n * float64(time.Second))), nil
}

// durationText returns a duration without its parts that are zero.
func durationText(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

var signals = []string{"TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"}

// signalName returns a signal by its name or its number. It returns an error for a signal that hinit can't send.
func signalName(value string) (name string, err error) {
	name = strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(value)), "SIG")
	if byNumber, is := map[string]string{"15": "TERM", "2": "INT", "1": "HUP", "3": "QUIT", "10": "USR1", "12": "USR2", "9": "KILL"}[name]; is {
		name = byNumber
	}
	if !slices.Contains(signals, name) {
		return "", fmt.Errorf("hinit does not stop with %s; TERM is taken", value)
	}
	return name, nil
}

// disabled returns the value of the key enabled.
func disabled(off bool) string { return map[bool]string{true: "false"}[off] }

// exitCodes returns the exit codes in a list that mean success, except for 0.
func exitCodes(list []string) []string {
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

// unlessFalse returns the value of the key enabled for a switch that starts a service.
func unlessFalse(value string) (string, error) { return disabled(isFalse(value)), nil }

// whenFalse makes a note if a switch is off, because hinit does not support that.
func whenFalse(why string) func(string) (string, error) {
	return func(value string) (string, error) {
		if isFalse(value) {
			return "", errors.New(why)
		}
		return "", nil
	}
}

// whenSet makes a value, or a note, if a switch is on.
func whenSet(made, why string) func(string) (string, error) {
	return func(value string) (string, error) {
		switch {
		case !isTrue(value):
			return "", nil
		case why != "":
			return made, errors.New(why)
		}
		return made, nil
	}
}

// otherWays has notes on settings that hinit does not have, with another way to the same goal. The names come from the other
// supervisor.
var otherWays = rules{
	{name: "env_cmds", note: "hinit runs no commands for variables; write $(COMMAND) where the shell of a command uses one, or a file for env_file at boot"},
	{name: "extends", note: "the other file is not read; import it too, and put both below services"},
	{name: "watch", note: "hinit watches no sources; hinit restart NAME is what a watcher can call"},
	{name: "mcp", note: "hinit runs it as a service and offers no tools; leave it out, or let the tool call hinit run-once"},
	{name: "mcp_server", note: "hinit offers no tools; its own interface is the control socket"},
	{name: "is_elevated", note: "hinit uses no sudo; run hinit as root, and say user where a service is not to be root"},
	{name: "disable_ansi_colors", note: "hinit passes on the output as it is; most programs know NO_COLOR in env"},
	{name: "launch_timeout_seconds", note: "a service stays in the foreground under hinit; how long a start may take is checks of kind startup"},
	{name: "isDaemon", note: "process-compose knows is_daemon; a service stays in the foreground under hinit"},
	{name: "exit_on_skipped", note: "a service that waits for another one in vain stays waiting; hinit status says for what"},
	{name: "log_configuration", note: "hinit has the keys of logs for size, number, age and compression, and logs.console for the format"},
	{name: "unix_socket_path", note: "hinit has a control socket of its own, control.socket"},
	{name: "ordered_shutdown", note: "hinit stops in the reverse order of needs always"},
	{name: "pairing", note: "hinit has no remote access to pair for; its interface is the control socket"},
	{name: "image|build", note: "left out; the program has to be in the image that hinit is in"},
	{name: "ports|volumes|networks", note: "is for the engine; give it to the container that hinit is in"},
	{name: "disable_dotenv", note: "env_file names the files that a service reads"},
}

// oneLine shortens a text to a part of its first line.
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
