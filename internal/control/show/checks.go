package show

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"hinit/client"
)

// checks writes what the checks of a service say, one line each.
func (w *page) checks(s *client.Service) {
	if len(s.Checks) == 0 {
		return
	}
	w.line("checks of " + Line(s.Name) + ":")
	for i := range s.Checks {
		w.wrapped("    ", Line(s.Checks[i].Name+" "+Check(&s.Checks[i])))
	}
}

// settings writes what is settled for a service, one line each.
func (w *page) settings(s *client.Service) {
	if len(s.Settings) == 0 {
		return
	}
	w.line("settings of " + Line(s.Name) + ":")
	for i := range s.Settings {
		w.wrapped("    ", Line(Setting(&s.Settings[i])))
	}
}

// Isolation says how a service is isolated, and what of it is in force. It is "" for a service without isolation.
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

// Limits says what limits a service in a control group, and what enforces it. It is "" for a service without such limits.
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

// Setting writes one setting as a dotted key with its value. It is not escaped.
func Setting(e *client.ConfigEntry) string {
	text := fmt.Sprint(e.Value)
	if _, plain := e.Value.(string); !plain {
		if data, err := json.Marshal(e.Value); err == nil {
			text = string(data)
		}
	}
	return e.Key + " " + text
}

// Check says what a check has come to. The answer in it may be anything.
func Check(c *client.Check) string {
	text := map[string]string{client.CheckHeld: "is on hold"}[c.State]
	if text == "" {
		text = "is " + c.State
	}
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
