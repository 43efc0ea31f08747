package web

import (
	"errors"
	"html/template"
	"net/http"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
)

// servicePage is one service.
type servicePage struct {
	rowView
	Fault    string
	PID      int
	Run      uint64
	Command  string
	Reason   string
	Failures int
	Next     *time.Time
	Exits    map[string]int
	Tail     []string
	Checks   []checkView
	Tree     []process
	Past     pastView
	Log      logView
	Events   []eventView
	Did      didView
	Isolated string // how it is isolated, "" for not at all
	Read     string // why there are no buttons
}

// didView is the last command.
type didView struct {
	Done string
	Undo string // the command that takes it back
}

// checkView is a check as the page shows it.
type checkView struct {
	look
	Name, Kind, Answer string
	At                 time.Time
	Failures           int
}

// readOnly says why a page has no buttons.
const readOnly = "This page is for reading: hinit web runs without a token. To start and stop from here, set HINIT_WEB_TOKEN_FILE, or open it by --listen unix:PATH."

// serviceEvents is how many events a page of a service shows.
const serviceEvents = 20

func (s *Server) service(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.current(r.Context())
	v := find(st, r.PathValue("name"))
	if v == nil {
		s.noService(w, r, err)
		return
	}
	page := servicePage{
		rowView: s.view(v, s.hub.uses(v.Name)), PID: v.PID, Run: v.Run, Reason: oneLine(v.Reason), Failures: v.ConsecutiveFailures,
		Next: v.NextStart, Exits: make(map[string]int, len(v.Exits)), Tree: s.hub.meter.processes(v.Name), Isolated: oneLine(show.Isolation(v)),
	}
	if verb := r.FormValue("done"); done[verb] != "" {
		page.Did = didView{done[verb], undo[verb]}
	}
	if !s.mayControl(r) {
		page.Read = readOnly
	}
	if err != nil {
		page.Fault = oneLine(err.Error())
	}
	for cause, n := range v.Exits {
		page.Exits[oneLine(cause)] += n
	}
	page.Command = oneLine(strings.Join(v.Command, " "))
	if v.LastExit != nil {
		for _, line := range v.LastExit.Tail {
			page.Tail = append(page.Tail, logText(hide(line)))
		}
	}
	for i := range v.Checks {
		page.Checks = append(page.Checks, viewCheck(&v.Checks[i]))
	}
	history := s.hub.history()
	page.Past = span(r, time.Now())
	page.Past.Bars, _ = timeline([]client.Service{*v}, history, page.Past.From, page.Past.To)
	for _, e := range history {
		if e.Service == v.Name {
			page.Events = append(page.Events, viewEvent(e))
		}
	}
	page.Events = page.Events[max(0, len(page.Events)-serviceEvents):]
	page.Log = s.readLog(r, st.Init, v)
	s.show(w, r, http.StatusOK, "service", v.Name, page)
}

func viewCheck(c *client.Check) checkView {
	out := checkView{Name: oneLine(c.Name), Kind: oneLine(c.Kind + ", " + c.Type), Answer: oneLine(c.Answer), Failures: c.Failures, look: look{"off", "○", oneLine(c.State)}}
	switch {
	case c.Failed:
		out.Class, out.Sign = "bad", "✖"
	case c.State == "passing":
		out.Class, out.Sign = "good", "●"
	}
	if c.At != nil {
		out.At = *c.At
	}
	return out
}

func (s *Server) noService(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.fail(w, r, http.StatusBadGateway, oneLine(err.Error()))
		return
	}
	s.fail(w, r, http.StatusNotFound, "There is no service of that name.")
}

// done are the words after a command, and undo are the commands that take it back.
var (
	done = map[string]string{"start": "It was told to start.", "stop": "It was told to stop.", "restart": "It was told to restart."}
	undo = map[string]string{"start": "stop", "stop": "start"}
)

// fail shows why a page is none.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	s.show(w, r, code, "fail", "Not done", why)
}

// ask shows the question before a stop, for a browser without scripts.
func (s *Server) ask(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.current(r.Context())
	v := find(st, r.PathValue("name"))
	switch {
	case v == nil:
		s.noService(w, r, err)
	case !s.mayControl(r):
		s.fail(w, r, http.StatusForbidden, readOnly)
	default:
		s.show(w, r, http.StatusOK, "ask", "Stop "+v.Name+"?", s.view(v, usedView{}))
	}
}

// command starts, stops or restarts a service.
func (s *Server) command(w http.ResponseWriter, r *http.Request) {
	name, verb := r.PathValue("name"), r.PathValue("verb")
	_, bearer := bearer(r) // no browser adds it by itself, as it does with Basic
	switch {
	case done[verb] == "":
		s.fail(w, r, http.StatusNotFound, "There is no such command.")
		return
	case !s.mayControl(r):
		s.fail(w, r, http.StatusForbidden, readOnly)
		return
	case !bearer && !s.fromOurPage(r):
		s.fail(w, r, http.StatusForbidden, "The form is not of a page that this browser has from here. Go back, load the page again and repeat it.")
		return
	}
	if _, err := s.Hinit.Order(r.Context(), client.Verb(verb), name, client.Wait{}); err != nil {
		code := http.StatusBadGateway
		switch {
		case errors.Is(err, client.ErrUnknown):
			code = http.StatusNotFound
		case errors.Is(err, client.ErrNotAllowed):
			code = http.StatusForbidden
		}
		s.Log.Warn("refused", "verb", verb, "service", name, "remote", remote(r), "error", err)
		s.fail(w, r, code, oneLine(err.Error()))
		return
	}
	s.Log.Info("told", "verb", verb, "service", name, "remote", remote(r))
	http.Redirect(w, r, s.Base+"/service/"+template.URLQueryEscaper(name)+"?done="+verb, http.StatusSeeOther)
}
