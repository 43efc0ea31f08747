package cli

import (
	"strconv"
	"strings"

	"hinit/internal/cmdline"
)

// nearestName returns the end of a message about an unknown service or profile: the name that was probably meant. message is hinit's
// answer.
func (t *Terminal) nearestName(message string) string {
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
	var names []string
	st, _ := t.Status(ShortWait) // without the status there are no names
	for i := range st.Services {
		names = append(names, uniqueName(&st.Services[i], nil))
	}
	return cmdline.DidYouMean(word, names)
}
