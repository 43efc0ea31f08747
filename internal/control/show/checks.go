package show

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"hinit/client"
)

// writeList writes a title and below it one line for each item. Without items, it writes nothing.
func writeList[T any](w *page, title string, items []T, line func(*T) string) {
	for i := range items {
		if i == 0 {
			w.writeLine(Line(title) + ":")
		}
		w.writeWrapped("    ", Line(line(&items[i])))
	}
}

// Isolation describes the isolation of a service and the parts that are in force. The result is "" for a service without
// isolation.
func Isolation(s *client.Service) string {
	switch i := s.Isolation; {
	case i == nil:
		return ""
	case s.PID == 0:
		return i.Mode + " (it does not run)"
	case len(i.InForce) == 0:
		return i.Mode + ", NOT IN FORCE: its process began without it; to apply it: hinit restart " + s.Name
	default:
		return i.Mode + " (" + strings.Join(i.InForce, ", ") + ")"
	}
}

// Limits describes the limits of a service that need a control group, and what enforces each. The result is "" if the
// service has no such limits.
func Limits(s *client.Service) string {
	words := make([]string, len(s.Limits))
	for i, l := range s.Limits {
		words[i] = l.Key + " " + l.Value + " (" + limitedBy[l.By] + ")"
	}
	return strings.Join(words, ", ")
}

var limitedBy = map[string]string{
	client.LimitedByGroup: "by its control group", client.LimitedByHinit: "measured by hinit", client.LimitedByNice: "as a nice value",
	client.LimitedByUser: "counted for its user", client.LimitedLater: "from its next start", client.LimitedByNothing: "NOT IN FORCE",
}

// Setting returns one setting as its dotted key and value. The text is not escaped.
func Setting(e *client.ConfigEntry) string {
	text := fmt.Sprint(e.Value)
	if _, plain := e.Value.(string); !plain {
		if data, err := json.Marshal(e.Value); err == nil {
			text = string(data)
		}
	}
	return e.Key + " " + text
}

// Check describes the result of a check. The text is not escaped, and the answer from the check may contain any characters.
func Check(c *client.Check) string {
	text := "is " + cmp.Or(map[string]string{client.CheckHeld: "on hold"}[c.State], c.State)
	if !c.Since.IsZero() && c.State != client.CheckHeld {
		text += " since " + Duration(max(time.Since(c.Since), 0))
	}
	if c.Failures > 1 {
		text += fmt.Sprintf(", %d bad answers in a row", c.Failures)
	}
	if c.Answer != "" {
		text += ": " + c.Answer
	}
	return text
}
