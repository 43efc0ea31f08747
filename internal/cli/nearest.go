package cli

import (
	"strconv"
	"strings"

	"hinit/internal/cmdline"
)

// nearestName returns the end of a message about an unknown service or profile: a suggestion of the name that was probably meant.
// message is the error message of the init, which quotes the unknown name.
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
	st, _ := t.Status(ShortWait) // without a status there is nothing to suggest
	for i := range st.Services {
		names = append(names, uniqueName(&st.Services[i], nil))
	}
	return cmdline.DidYouMean(word, names)
}
