package imports

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rule says how to import a setting of another supervisor: as a key of hinit.yaml, as a note, by a function, or not at all.
type rule struct {
	name string                             // regular expression for the names of the settings
	key  string                             // key of hinit.yaml
	as   func(value string) (string, error) // makes the value of the key; nil for the same value. Its error becomes the note
	why  string                             // note that says why the setting is left out; the value replaces %s in it
	do   func(im *importer, s *service, at from, value string)
}

// from is a setting of the other supervisor: its place and its name there.
type from struct {
	place
	where string
}

// rules are tried in their order, and [ways] after them.
type rules []rule

// apply applies the first rule that matches a setting. Without one it notes the setting.
func (im *importer) apply(list rules, name string, at from, s *service, value string) {
	r := rule{why: "hinit has nothing like this setting; hinit config schema lists what it has"}
	if value != "" {
		r.why += " (%s)"
	}
	for _, one := range slices.Concat(list, ways) {
		if regexp.MustCompile("^(?:" + one.name + ")$").MatchString(name) {
			r = one
			break
		}
	}
	var err error
	switch {
	case r.do != nil:
		r.do(im, s, at, value)
	case r.why != "":
		im.note(at, "%s", strings.ReplaceAll(r.why, "%s", oneLine(value)))
	case r.as != nil:
		if value, err = r.as(value); err != nil {
			im.note(at, "%v", err)
		}
	}
	if r.key != "" && value != "" {
		s.take(r.key, at.place, value)
	}
}

// constantDelay imports a time as the delay before each restart.
func constantDelay(read func(string) (string, error)) func(*importer, *service, from, string) {
	return func(im *importer, s *service, at from, value string) {
		delay, err := read(value)
		if err != nil {
			im.note(at, "%v", err)
		} else if delay != "" {
			s.take("restart.initial", at.place, delay)
			s.set("restart.max", delay)
			s.set("restart.factor", "1")
		}
	}
}

// addCodes adds the exit codes of a value to a list.
func addCodes(key, separators string) func(*importer, *service, from, string) {
	return func(im *importer, s *service, at from, value string) {
		words := strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(separators, r) })
		words = slices.DeleteFunc(words, func(word string) bool { return word == "0" })
		codes := exitCodes(words)
		s.take(key, at.place, append(s.list(key), codes...))
		if len(codes) < len(words) {
			im.note(at, "hinit.yaml has numbers for exit codes; signals and names are left out (%s)", value)
		}
	}
}

// choice maps a value by a fixed set of words.
func choice(otherwise, whatFollows string, words map[string]string) func(string) (string, error) {
	return func(value string) (string, error) {
		if made, known := words[strings.ToLower(value)]; known {
			return made, nil
		}
		return otherwise, fmt.Errorf("%q is not known; %s", oneLine(value), whatFollows)
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
func exitCodes(list []string) (others []string) {
	for _, code := range list {
		if n, err := strconv.Atoi(strings.TrimSpace(code)); err == nil && n > 0 && n < 256 {
			others = append(others, strconv.Itoa(n))
		}
	}
	return others
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
