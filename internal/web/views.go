package web

import (
	"cmp"
	"html/template"
	"net/url"
	"regexp"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/redact"
	"hinit/internal/usage"
)

// look is the look of a service: a style class and a sign. With the sign, a reader does not need to see colours.
type look struct{ Class, Sign, Word string }

// looks are the looks of the grades.
var looks = [...]look{
	show.Well: {"good", "●", ""}, show.Off: {"off", "○", ""}, show.Coming: {"wait", "◐", ""}, show.Ailing: {"bad", "!", ""}, show.Trouble: {"bad", "✖", ""},
}

func lookOf(s *client.Service) look {
	v := show.Judge(s)
	out := looks[v.Grade]
	if out.Word = oneLine(s.State); v.Word != "" {
		out.Word += ", " + v.Word
	}
	return out
}

// rowView is the view of a service in the list.
type rowView struct {
	Base, Name, Profile, Group string
	look
	Since    time.Time
	Restarts int
	usedView
	ServedBy string
	Exit     string
	ExitAt   time.Time
	Note     string
}

func (s *Server) view(v *client.Service, used usedView) rowView {
	out := rowView{
		Base: s.Base, Name: v.Name, Profile: oneLine(v.Profile), Group: oneLine(v.Group), look: lookOf(v), Since: v.Since, Restarts: v.Restarts, usedView: used,
		ServedBy: v.ServedBy, Note: oneLine(v.Problem),
	}
	if x := v.LastExit; x != nil {
		out.Exit, out.ExitAt = oneLine(exitWords(x)), x.At
	}
	if out.Note == "" && v.State != client.StateUp && v.State != client.StateDown {
		out.Note = oneLine(v.Reason)
	}
	return out
}

func exitWords(x *client.Exit) string { return cmp.Or(x.Error, show.Exit(x)) }

// mostText limits the bytes of a text from others.
const mostText = 1000

// oneLine makes one line of a text from others. It hides secrets and removes everything that is no text.
func oneLine(text string) string {
	if len(text) > mostText {
		text = strings.ToValidUTF8(text[:mostText], "") + "…"
	}
	if text == "" {
		return ""
	}
	return show.Line(redact.Text(text))
}

// colours matches the colour sequences of a terminal.
var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// logText returns a log line in the form of the page.
func logText(line string) string { return show.Line(colours.ReplaceAllString(line, "")) }

// headView has the summary above the list of services.
type headView struct {
	Fault       string
	Status      *client.Status
	Wanted, Up  int
	Ready       int
	CPU, Memory string // of all services; "" is unknown
	Processes   int
	Troubled    int
}

func summary(st *client.Status, fault string, used measured) headView {
	v := headView{Fault: oneLine(fault), Status: st}
	for i := range st.Services {
		s := &st.Services[i]
		if s.Want == client.WantUp {
			v.Wanted++
			if s.State == client.StateUp {
				v.Up++
			}
			if s.Ready {
				v.Ready++
			}
		}
		if show.Judge(s).Troubled() {
			v.Troubled++
		}
	}
	var all usage.Usage
	for _, u := range used.of {
		all.CPU, all.Memory, all.Processes = all.CPU+u.CPU, all.Memory+u.Memory, all.Processes+u.Processes
	}
	sum := measured{of: map[string]usage.Usage{"": all}, cpu: used.cpu}.view("")
	if v.Processes = all.Processes; all.Processes > 0 {
		v.CPU, v.Memory = sum.CPU, sum.Memory
	}
	return v
}

// functions returns the functions for the templates.
func (s *Server) functions() template.FuncMap {
	return template.FuncMap{
		"path": url.PathEscape,
		"when": func(t time.Time) string {
			if t.IsZero() {
				return "never"
			}
			return t.UTC().Format("2006-01-02 15:04:05 UTC")
		},
		"short":     func(t time.Time) string { return t.UTC().Format("01-02 15:04") },
		"stamp":     func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"took":      func(d time.Duration) string { return show.Duration(d) },
		"seconds":   func(n int64) string { return show.Duration(time.Duration(n) * time.Second) },
		"text":      oneLine,
		"logged":    func(line string) string { return logText(redact.Text(line)) },
		"isolation": show.Isolation,
		"checkLook": checkLook,
		"megabytes": megabytes,
		"stateOf":   stateOf,
		"happened":  eventText,
		"base":      func() string { return s.Base },
		"join":      strings.Join,
	}
}
