package web

import (
	"cmp"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
	"hinit/internal/redact"
)

// servicePage is the content of the page of one service.
type servicePage struct {
	rowView
	Service *client.Service // texts in it are untrusted: the service or an agent may have chosen them
	Fault   string
	Tree    []procstat.Stat
	Past    pastView
	Log     logView
	Events  []client.Event
	Orders  *ordersView
}

// ordersView are the buttons by which a client controls a service or a group.
type ordersView struct {
	Kind, Name     string // target of the buttons: "service" or "group", and its name
	Label          string
	ReadOnlyReason string // why the page has no buttons; "" if it has
	Done, Undo     string // the last command, and the command that undoes it
}

// ordersFor returns the buttons for a service or a group that the client of this request may use.
func (s *Server) ordersFor(r *http.Request, kind, name string) *ordersView {
	v := &ordersView{Kind: kind, Name: name, Label: name}
	if kind == "group" {
		v.Label = "@" + name
	}
	if !s.mayControl(r) {
		v.ReadOnlyReason = readOnlyReason
	}
	if verb := r.FormValue("done"); doneMessages[verb] != "" {
		v.Done, v.Undo = doneMessages[verb], undoCommands[verb]
	}
	return v
}

// readOnlyReason is the text in place of the buttons.
const readOnlyReason = "This page is for reading: hinit web runs without a token. To start and stop from here, set HINIT_WEB_TOKEN_FILE, or open it by --listen unix:PATH."

const maxServiceEvents = 20

func (s *Server) showService(w http.ResponseWriter, r *http.Request, v pageService) {
	page := servicePage{rowView: s.view(v.Service, s.hub.usageOf(v.Name)), Service: v.Service, Tree: s.hub.meter.processes(v.Name), Orders: s.ordersFor(r, "service", v.Name)}
	if v.fault != nil {
		page.Fault = oneLine(v.fault.Error())
	}
	history := s.hub.history()
	page.Past = requestedPeriod(r, time.Now())
	page.Past.Bars, _ = timeline([]client.Service{*v.Service}, history, page.Past.From, page.Past.To)
	page.Events = slices.DeleteFunc(history, func(e client.Event) bool { return e.Service != v.Name })
	page.Events = page.Events[max(0, len(page.Events)-maxServiceEvents):]
	page.Log = s.readLog(r, v)
	s.showPage(w, r, http.StatusOK, "service", v.Name, page)
}

// checkMark returns the mark for the state of a health check.
func checkMark(c client.Check) stateMark {
	word := oneLine(c.State)
	switch {
	case c.Failed:
		return stateMark{"bad", "✖", word}
	case c.State == "passing":
		return stateMark{"good", "●", word}
	}
	return stateMark{"off", "○", word}
}

func (s *Server) showServiceError(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.showError(w, r, http.StatusBadGateway, oneLine(err.Error()))
		return
	}
	s.showError(w, r, http.StatusNotFound, "There is no service of that name.")
}

// doneMessages has the message after each command. undoCommands has the command that undoes each command.
var (
	doneMessages = map[string]string{"start": "It was told to start.", "stop": "It was told to stop.", "restart": "It was told to restart."}
	undoCommands = map[string]string{"start": "stop", "stop": "start"}
)

func (s *Server) showError(w http.ResponseWriter, r *http.Request, code int, why string) {
	s.showPage(w, r, code, "fail", "Not done", why)
}

// orderTargets returns the services of a request: the service in its path, or all services of the group in its path. kind is
// "service" or "group".
func (s *Server) orderTargets(r *http.Request) (kind string, names []string, err error) {
	st, err := s.hub.currentStatus(r.Context())
	kind, _, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name := r.PathValue("name")
	names = lo.FilterMap(st.Services, func(v client.Service, _ int) (string, bool) {
		return v.Name, kind == "group" && v.Group == name || kind == "service" && v.Name == name
	})
	return kind, names, err
}

// confirmStop shows a page that asks whether to stop, for browsers without scripts.
func (s *Server) confirmStop(w http.ResponseWriter, r *http.Request) {
	kind, names, err := s.orderTargets(r)
	switch {
	case len(names) == 0:
		s.showServiceError(w, r, err)
	case !s.mayControl(r):
		s.showError(w, r, http.StatusForbidden, readOnlyReason)
	default:
		orders := s.ordersFor(r, kind, r.PathValue("name"))
		s.showPage(w, r, http.StatusOK, "ask", "Stop "+orders.Label+"?", struct {
			*ordersView
			Names []string
		}{orders, names})
	}
}

// giveOrder starts, stops or restarts a service, or all services of a group.
func (s *Server) giveOrder(w http.ResponseWriter, r *http.Request) {
	name, verb := r.PathValue("name"), r.PathValue("verb")
	_, bearer := bearerTokenOf(r) // a browser never adds this header by itself, so another site can't forge the request
	switch {
	case doneMessages[verb] == "":
		s.showError(w, r, http.StatusNotFound, "There is no such command.")
		return
	case !s.mayControl(r):
		s.showError(w, r, http.StatusForbidden, readOnlyReason)
		return
	case !bearer && !isSameSiteForm(r):
		s.showError(w, r, http.StatusForbidden, "The form is not of a page that this browser has from here. Go back, load the page again and repeat it.")
		return
	}
	kind, names, err := s.orderTargets(r)
	if kind == "group" && len(names) == 0 {
		s.showServiceError(w, r, err)
		return
	}
	if kind == "service" {
		names = []string{name}
	}
	for _, target := range names {
		if _, err := s.Hinit.Order(r.Context(), client.Verb(verb), target, client.WaitOptions{}); err != nil {
			code := http.StatusBadGateway
			switch {
			case errors.Is(err, client.ErrUnknown):
				code = http.StatusNotFound
			case errors.Is(err, client.ErrNotAllowed):
				code = http.StatusForbidden
			}
			s.Log.Warn("refused", "verb", verb, "service", target, "remote", limitKeyWithoutToken(r), "error", err)
			s.showError(w, r, code, oneLine(err.Error()))
			return
		}
		s.Log.Info("told", "verb", verb, "service", target, "remote", limitKeyWithoutToken(r))
	}
	http.Redirect(w, r, s.Base+"/"+kind+"/"+template.URLQueryEscaper(name)+"?done="+verb, http.StatusSeeOther)
}

// stateMark represents a state on a page: a style class, a sign and a word. The sign helps readers who can't see the colours.
type stateMark struct{ Class, Sign, Word string }

// stateMarks maps each grade of package show to its stateMark.
var stateMarks = [...]stateMark{
	show.GradeHealthy: {"good", "●", ""}, show.GradeDown: {"off", "○", ""}, show.GradeChanging: {"wait", "◐", ""}, show.GradeDegraded: {"bad", "!", ""}, show.GradeFailed: {"bad", "✖", ""},
}

func markOf(s *client.Service) stateMark {
	v := show.VerdictOf(s)
	out := stateMarks[v.Grade]
	out.Word = oneLine(s.State)
	if v.StateRemark != "" {
		out.Word += ", " + v.StateRemark
	}
	return out
}

// rowView is the list's view of a service.
type rowView struct {
	Base, Name, Profile, Group string
	stateMark
	Since    time.Time
	Restarts int
	usageView
	ServedBy string
	Exit     string
	ExitAt   time.Time
	Note     string
}

func (s *Server) view(v *client.Service, used usageView) rowView {
	out := rowView{
		Base: s.Base, Name: v.Name, Profile: oneLine(v.Profile), Group: oneLine(v.Group), stateMark: markOf(v), Since: v.Since, Restarts: v.Restarts, usageView: used,
		ServedBy: v.ServedBy, Note: oneLine(v.Problem),
	}
	if x := v.LastExit; x != nil {
		out.Exit, out.ExitAt = oneLine(exitText(x)), x.EndedAt
	}
	if out.Note == "" && v.State != client.StateUp && v.State != client.StateDown {
		out.Note = oneLine(v.Reason)
	}
	return out
}

func exitText(x *client.Exit) string { return cmp.Or(x.Error, show.ExitText(x)) }

// maxText is the maximum size in bytes of an untrusted text on a page.
const maxText = 1000

// oneLine makes an untrusted text safe to show on one line: it hides secrets, cuts a long text, and escapes control characters.
func oneLine(text string) string {
	text = redact.HideText(text) // a cut could leave the beginning of a secret, so hide secrets first
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return show.EscapeLine(text)
}

var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// logText returns a log line for the page: without colours, and with control characters escaped.
func logText(line string) string { return show.EscapeLine(colours.ReplaceAllString(line, "")) }

// loggedLines returns consecutive lines of a log for the page. It hides secrets in all lines together, because a private key
// spans several lines.
func loggedLines(lines []string) []string {
	hidden := strings.Split(redact.HideText(strings.Join(lines, "\n")), "\n")
	return lo.Map(hidden, func(line string, _ int) string { return logText(line) })
}

// headView is the summary above the list of services.
type headView struct {
	Fault       string
	Status      *client.Status
	Wanted, Up  int
	Ready       int
	CPU, Memory string
	Processes   int
	Troubled    int
}

func makeHeadView(st *client.Status, fault string, used usageSample) headView {
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
		if show.VerdictOf(s).NeedsAttention() {
			v.Troubled++
		}
	}
	var all procusage.Usage
	for _, u := range used.byName {
		all.CPU, all.Memory, all.Processes = all.CPU+u.CPU, all.Memory+u.Memory, all.Processes+u.Processes
	}
	sum := usageSample{byName: map[string]procusage.Usage{"": all}, cpuKnown: used.cpuKnown}.view("")
	v.Processes = all.Processes
	if all.Processes > 0 {
		v.CPU, v.Memory = sum.CPU, sum.Memory
	}
	return v
}

// functions returns the functions that templates can call.
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
		"took":      func(d time.Duration) string { return show.FormatDuration(d) },
		"seconds":   func(n int64) string { return show.FormatDuration(time.Duration(n) * time.Second) },
		"text":      oneLine,
		"logged":    loggedLines,
		"isolation": show.IsolationText,
		"checkLook": checkMark,
		"megabytes": megabytes,
		"stateOf":   processStateText,
		"happened":  eventText,
		"base":      func() string { return s.Base },
		"join":      strings.Join,
	}
}
