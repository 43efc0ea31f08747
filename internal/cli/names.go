package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

// parseServices parses the arguments of a verb that selects services by name, by pattern, by @GROUP or by the flag --state. It
// doesn't check plain names, because hinit may find a service that is not in its status yet. With --state an unknown name is an
// error, because an unknown service has no state.
func (c *Call) parseServices(t *Terminal, atLeast, atMost int) (names []string, code int, ok bool) {
	state := ""
	c.Flags.Func("state", "only services in the state `STATE`: trouble, failed, up and so on", func(text string) error {
		if !slices.Contains(States(), text) {
			return fmt.Errorf("it is one of %s", strings.Join(States(), ", "))
		}
		state = text
		return nil
	})
	words, code, ok := c.Description().Parse(c.Flags, c.Args, 0, -1, t.Out, t.Err)
	if !ok {
		return nil, code, false
	}
	at := max(0, len(words)-c.Verb.OtherArgCount)
	if (c.isFlagOn("all") || c.isFlagOn("changed")) && (state != "" || at > 0) {
		return nil, t.Fail(cmdline.ExitUsage, "cannot %s: expected one of: %s", c.Action(), c.Verb.Args), false
	}
	c.NamedServices = words[:at]
	if state != "" || slices.ContainsFunc(words[:at], cmdline.IsSelector) {
		chosen, err := t.SelectServices(c, words[:at], state)
		if err != nil {
			return nil, t.ReportError(c.Action(), err), false
		}
		if len(chosen) == 0 {
			return nil, t.printNoService(c, at > 0, state), false
		}
		words = append(chosen, words[at:]...)
	}
	return words, cmdline.ExitUsage, c.Description().CheckArgCount(words, atLeast, atMost, t.Err)
}

// isFlagOn reports whether the switch name is on. It returns false if the verb has no such switch.
func (c *Call) isFlagOn(name string) bool {
	f := c.Flags.Lookup(name)
	return f != nil && f.Value.String() == "true"
}

// printNoService prints that no service is in the given state. With named, the text is about the named services. It returns the
// exit code.
func (t *Terminal) printNoService(c *Call, named bool, state string) int {
	if c.Verb.EmptyResult != nil && c.JSON {
		empty, err := c.Verb.EmptyResult(t)
		if err == nil && c.isFlagOn("watch") {
			return t.ReportError(c.Action(), cmdline.WriteJSON(t.Out, empty, ""))
		}
		return t.ShowResult(c, empty, err, nil)
	}
	which, where := "no service", "in the state "+state
	if named {
		which = "none of the named services"
	}
	if state == StateTrouble {
		where = "in trouble"
	}
	return t.Fail(cmdline.ExitDone, "%s is %s", which, where)
}

// EmptyList is the [Verb.EmptyResult] of verbs that print a list.
func EmptyList(*Terminal) (any, error) { return []string{}, nil }

// IsNamed reports whether an argument of the call is the name of the service s or of its profile. It returns false for a
// service that only a pattern, a group or --state selects.
func (c *Call) IsNamed(s *client.Service) bool {
	return slices.Contains(c.NamedServices, s.Name) || s.Profile != "" && slices.Contains(c.NamedServices, s.Profile)
}

// SelectServices returns the names of the services that the arguments words and the state of --state select, each name once.
// Without words it selects from all services. It sets c.Named.
func (t *Terminal) SelectServices(c *Call, words []string, state string) (names []string, err error) {
	st, err := t.Status()
	if errors.Is(err, client.ErrUnreachable) && c.Verb.OfflineNames != nil && state == "" {
		var logs []string
		logs, err = c.Verb.OfflineNames(t)
		for _, name := range logs {
			st.Services = append(st.Services, client.Service{Name: name})
		}
	}
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		words = []string{"*"}
	}
	c.NamedServices = nil
	for _, word := range words {
		found, err := t.servicesFor(word, st.Services, state != "")
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			if state != "" && !InState(state, &s.service) {
				continue
			}
			if s.isExactName {
				c.NamedServices = append(c.NamedServices, s.name)
			}
			if !slices.Contains(names, s.name) {
				names = append(names, s.name)
			}
		}
	}
	return names, nil
}

// selectedService is a service that an argument selects. word is a name by which hinit finds the service.
type selectedService struct {
	service     client.Service
	name        string
	isExactName bool // the argument is exactly the service's name, and not a pattern
}

// servicesFor returns the services that the argument word selects. If the status lacks a name, it asks hinit for the service if
// needsState is true. Otherwise it returns the name unchanged.
func (t *Terminal) servicesFor(word string, services []client.Service, needsState bool) (found []selectedService, err error) {
	text := string([]rune(word)) // in the JSON of the status, U+FFFD has replaced invalid UTF-8
	for _, s := range services {
		itself := text == s.Name // the name may look like a pattern
		switch {
		case itself && s.Profile == "":
			found = append(found, selectedService{s, word, true})
		case itself, cmdline.IsSelector(word) && cmdline.SelectsService(word, &s):
			found = append(found, selectedService{s, uniqueName(&s, services), itself})
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case cmdline.IsSelector(word):
		return nil, &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("no service matches %q; `hinit status` lists them", word)}
	case !needsState:
		return []selectedService{{client.Service{}, word, true}}, nil
	}
	st, err := t.Status(word)
	for _, s := range st.Services {
		found = append(found, selectedService{s, uniqueName(&s, services), true})
	}
	return found, err
}

// uniqueName returns a name that selects only the service s: the name of its profile, or gateway-PROFILE if another service has
// that name.
func uniqueName(s *client.Service, services []client.Service) string {
	if s.Profile == "" || slices.ContainsFunc(services, func(other client.Service) bool { return other.Name == s.Profile && other.Profile == "" }) {
		return s.Name
	}
	return s.Profile
}

// nearestName returns a suggestion for the end of an error message: the known name that is most similar to the unknown name in
// message. Without a similar name it returns "".
func (t *Terminal) nearestName(message string) string {
	const before = "no such profile or service "
	_, rest, _ := strings.Cut(message, before)
	quoted, _ := strconv.QuotedPrefix(rest)
	word, err := strconv.Unquote(quoted)
	if err != nil {
		return ""
	}
	st, _ := t.Status()
	var names []string
	for i := range st.Services {
		names = append(names, uniqueName(&st.Services[i], nil))
	}
	return cmdline.DidYouMean(word, names)
}

// StateTrouble is the value of --state that stands for all services that need attention.
const StateTrouble = "trouble"

// ProblemKinds returns the kinds of problems of services, which are values of --state.
func ProblemKinds() []string {
	return []string{
		show.ProblemFailed, show.ProblemParked, show.ProblemCrashLoop, show.ProblemBackoff, show.ProblemUnserved, show.ProblemDeaf, show.ProblemPaused, show.ProblemNotReady, show.ProblemCheck, show.ProblemOther,
	}
}

// States returns all values of --state, sorted.
func States() []string {
	words := append([]string{
		client.StateDown, client.StateWaiting, client.StateStarting, client.StateUp, client.StateStopping, client.StateKilling, client.StateFinishing,
		StateTrouble,
	}, ProblemKinds()...)
	slices.Sort(words)
	return words
}

// InState reports whether the service s matches the value word of --state: its state, one of its kinds of problems, or
// [StateTrouble] for any problem.
func InState(word string, s *client.Service) bool {
	v := show.VerdictOf(s)
	return word == s.State || slices.Contains(v.Problems, word) || word == StateTrouble && v.NeedsAttention()
}
