package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

// stateFlag is the value of the flag --state.
type stateFlag string

// Choices are the words that it takes.
func (*stateFlag) Choices() []string { return show.States() }

// String implements flag.Value.
func (f *stateFlag) String() string { return string(*f) }

// Set implements flag.Value.
func (f *stateFlag) Set(text string) error {
	if !slices.Contains(f.Choices(), text) {
		return fmt.Errorf("it is one of %s", strings.Join(f.Choices(), ", "))
	}
	*f = stateFlag(text)
	return nil
}

// parseServices is Parse for a verb whose words are services. A word may be a name, a pattern or @GROUP; the flag --state narrows them
// down. Names that stand for themselves are left to hinit, which may find services that its status does not have yet.
func (c *Call) parseServices(t *Terminal, atLeast, atMost int) (names []string, code int, ok bool) {
	var state stateFlag
	c.Flags.Var(&state, "state", "only services in the state `STATE`, of all where none is named: trouble, failed, up and so on")
	words, code, ok := c.Described().Parse(c.Flags, c.Raw, 0, -1, t.Out, t.Err)
	if !ok {
		return nil, code, false
	}
	at := max(0, len(words)-c.Verb.Last)
	if state != "" || slices.ContainsFunc(words[:at], show.Chooses) {
		chosen, err := t.Chosen(c, words[:at], string(state))
		if err != nil {
			return nil, t.Failed(c.Doing(), err), false
		}
		if len(chosen) == 0 {
			return nil, t.Fail(cmdline.Done, "nothing to do: no service is %s", state), false
		}
		words = append(chosen, words[at:]...)
	}
	return words, cmdline.WrongUsage, c.Described().Counted(words, atLeast, atMost, t.Err)
}

// Chosen returns the names of the services that words and a state choose, each once. A service of a profile goes by the profile's name.
func (t *Terminal) Chosen(c *Call, words []string, state string) (names []string, err error) {
	st, err := t.Status(ShortWait)
	if errors.Is(err, client.ErrUnreachable) && c.Verb.Offline != nil && state == "" {
		var logs []string
		logs, err = c.Verb.Offline(t)
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
	for _, word := range words {
		known, text := false, string([]rune(word)) // the status is JSON: bytes that are no UTF-8 are U+FFFD there
		for i := range st.Services {
			s := &st.Services[i]
			itself := text == s.Name // also where the name has characters of a pattern
			if !itself && !show.Matches(word, s) {
				continue
			}
			known = true
			name := s.Name
			switch {
			case s.Profile != "":
				name = s.Profile
			case itself:
				name = word
			}
			if (state == "" || show.InState(state, s)) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		switch {
		case known:
		case show.Chooses(word):
			return nil, &client.Error{Kind: client.KindUnknown, Message: fmt.Sprintf("no service matches %q; `hinit status` lists them", word)}
		default:
			names = append(names, word)
		}
	}
	return names, nil
}
