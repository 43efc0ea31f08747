package cli

import (
	"strconv"
	"strings"
	"time"

	"hinit/internal/cmdline"
	"hinit/profiles"
)

// nameMeant is the end of a message about an unknown service or profile, made from hinit's answer.
func (t *Terminal) nameMeant(message string) string {
	const before = "no such profile or service "
	_, rest, found := strings.Cut(message, before)
	quoted, err := strconv.QuotedPrefix(rest)
	if !found || err != nil {
		return ""
	}
	word, err := strconv.Unquote(quoted)
	if err != nil {
		return ""
	}
	names, _ := t.LiveNames(ShortWait)
	return cmdline.DidYouMean(word, names)
}

// LiveNames are the names that the running init knows: profiles, other services, and then the slots of gateways.
func (t *Terminal) LiveNames(limit time.Duration) (names, slots []string) {
	st, _ := t.Status(limit) // without it there are no names
	for _, s := range st.Services {
		if s.Profile == "" {
			names = append(names, s.Name)
			continue
		}
		names, slots = append(names, s.Profile), append(slots, profiles.SlotName(s.Profile))
	}
	return names, slots
}
