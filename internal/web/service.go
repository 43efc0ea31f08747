package web

import (
	"errors"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/procstat"
)

// servicePage is the content of the page of one service.
type servicePage struct {
	rowView
	Service *client.Service // its texts may be chosen by others
	Fault   string
	Tree    []procstat.Stat
	Past    pastView
	Log     logView
	Events  []client.Event
	Orders  *ordersView
}

// ordersView has the buttons of a service or a group.
type ordersView struct {
	Kind, Name string // service or group
	Label      string
	Read       string // reason for which there are no buttons
	Done, Undo string // the last order, and the verb that undoes it
}

// orders returns the buttons for a service or a group.
func (s *Server) orders(r *http.Request, kind, name string) *ordersView {
	v := &ordersView{Kind: kind, Name: name, Label: name}
	if kind == "group" {
		v.Label = "@" + name
	}
	if !s.mayControl(r) {
		v.Read = readOnly
	}
	if verb := r.FormValue("done"); done[verb] != "" {
		v.Done, v.Undo = done[verb], undo[verb]
	}
	return v
}

// readOnly says why a page has no buttons.
const readOnly = "This page is for reading: hinit web runs without a token. To start and stop from here, set HINIT_WEB_TOKEN_FILE, or open it by --listen unix:PATH."

// serviceEvents is the number of events on a service's page.
const serviceEvents = 20

func (s *Server) service(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.current(r.Context())
	v := st.Find(r.PathValue("name"))
	if v == nil {
		s.noService(w, r, err)
		return
	}
	page := servicePage{rowView: s.view(v, s.hub.uses(v.Name)), Service: v, Tree: s.hub.meter.processes(v.Name), Orders: s.orders(r, "service", v.Name)}
	if err != nil {
		page.Fault = oneLine(err.Error())
	}
	history := s.hub.history()
	page.Past = span(r, time.Now())
	page.Past.Bars, _ = timeline([]client.Service{*v}, history, page.Past.From, page.Past.To)
	page.Events = slices.DeleteFunc(history, func(e client.Event) bool { return e.Service != v.Name })
	page.Events = page.Events[max(0, len(page.Events)-serviceEvents):]
	page.Log = s.readLog(r, st.Init, v)
	s.show(w, r, http.StatusOK, "service", v.Name, page)
}

// checkLook returns the look of a check.
func checkLook(c client.Check) look {
	word := oneLine(c.State)
	switch {
	case c.Failed:
		return look{"bad", "✖", word}
	case c.State == "passing":
		return look{"good", "●", word}
	}
	return look{"off", "○", word}
}

func (s *Server) noService(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		s.fail(w, r, http.StatusBadGateway, oneLine(err.Error()))
		return
	}
	s.fail(w, r, http.StatusNotFound, "There is no service of that name.")
}

// done are the messages after a command. undo are the commands that undo it.
var (
	done = map[string]string{"start": "It was told to start.", "stop": "It was told to stop.", "restart": "It was told to restart."}
	undo = map[string]string{"start": "stop", "stop": "start"}
)

// fail shows a page with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	s.show(w, r, code, "fail", "Not done", why)
}

// targets returns the services that a path names: one service, or all of a group.
func (s *Server) targets(r *http.Request) (kind string, names []string, err error) {
	st, err := s.hub.current(r.Context())
	kind, _, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	name := r.PathValue("name")
	for i := range st.Services {
		if v := &st.Services[i]; kind == "group" && v.Group == name || kind == "service" && v.Name == name {
			names = append(names, v.Name)
		}
	}
	return kind, names, err
}

// ask asks for confirmation before a stop, for a browser without scripts.
func (s *Server) ask(w http.ResponseWriter, r *http.Request) {
	kind, names, err := s.targets(r)
	switch {
	case len(names) == 0:
		s.noService(w, r, err)
	case !s.mayControl(r):
		s.fail(w, r, http.StatusForbidden, readOnly)
	default:
		orders := s.orders(r, kind, r.PathValue("name"))
		s.show(w, r, http.StatusOK, "ask", "Stop "+orders.Label+"?", struct {
			*ordersView
			Names []string
		}{orders, names})
	}
}

// command starts, stops or restarts a service, or all of a group.
func (s *Server) command(w http.ResponseWriter, r *http.Request) {
	name, verb := r.PathValue("name"), r.PathValue("verb")
	_, bearer := bearer(r) // unlike Basic, no browser adds it by itself
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
	kind, names, err := s.targets(r)
	if kind == "group" && len(names) == 0 {
		s.noService(w, r, err)
		return
	}
	if kind == "service" {
		names = []string{name} // hinit may already know a service that this page does not
	}
	for _, target := range names {
		if _, err := s.Hinit.Order(r.Context(), client.Verb(verb), target, client.Wait{}); err != nil {
			code := http.StatusBadGateway
			switch {
			case errors.Is(err, client.ErrUnknown):
				code = http.StatusNotFound
			case errors.Is(err, client.ErrNotAllowed):
				code = http.StatusForbidden
			}
			s.Log.Warn("refused", "verb", verb, "service", target, "remote", remote(r), "error", err)
			s.fail(w, r, code, oneLine(err.Error()))
			return
		}
		s.Log.Info("told", "verb", verb, "service", target, "remote", remote(r))
	}
	http.Redirect(w, r, s.Base+"/"+kind+"/"+template.URLQueryEscaper(name)+"?done="+verb, http.StatusSeeOther)
}
