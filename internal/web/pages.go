package web

import (
	"cmp"
	"context"
	"errors"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/client"
)

// listPage is the list of services.
type listPage struct {
	Query, State, Order string
	States              [][2]string
	Orders              [][2]string
	Head                template.HTML
	Groups              []group
	Version             uint64
	Shown               int
}

// group is the rows below a heading, "" for none.
type group struct {
	Profile string
	Headed  bool
	Rows    []template.HTML
}

var (
	// states are the filters of the list: by the class of a look.
	states = [][2]string{{"", "all"}, {"bad", "in trouble"}, {"wait", "on the way"}, {"good", "up"}, {"off", "down"}}
	orders = [][2]string{{"", "as hinit has them"}, {"profile", "by profile"}, {"cpu", "by CPU"}, {"memory", "by memory"}}
)

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	st, _ := s.hub.current(r.Context()) // its fault is in the head
	page := listPage{Query: plain(r.FormValue("q")), State: r.FormValue("state"), States: states, Order: r.FormValue("order"), Orders: orders}
	d, _ := s.hub.since(0, "")
	page.Head, page.Version = d.Head, d.Version
	var shown []rowView
	for i := range st.Services {
		v := &st.Services[i]
		view := s.view(v, s.hub.uses(v.Name))
		text := strings.ToLower(strings.Join([]string{view.Name, view.Profile, view.Word, view.Exit, view.Note}, " "))
		if strings.Contains(text, strings.ToLower(page.Query)) && (page.State == "" || page.State == view.Class) {
			shown = append(shown, view)
		}
	}
	arrange(shown, page.Order)
	for i := range shown {
		if headed := page.Order == "profile"; i == 0 || headed && shown[i].Profile != shown[i-1].Profile {
			page.Groups = append(page.Groups, group{Profile: shown[i].Profile, Headed: headed})
		}
		last := &page.Groups[len(page.Groups)-1]
		last.Rows = append(last.Rows, d.Rows[shown[i].Name])
	}
	page.Shown = len(shown)
	s.show(w, r, http.StatusOK, "list", "Services", page)
}

// arrange sorts rows. What has no profile comes last.
func arrange(list []rowView, order string) {
	slices.SortStableFunc(list, func(a, b rowView) int {
		switch order {
		case "profile":
			if (a.Profile == "") != (b.Profile == "") {
				return cmp.Compare(b.Profile, a.Profile)
			}
			return cmp.Compare(a.Profile, b.Profile)
		case "cpu":
			return cmp.Compare(b.Hundredths, a.Hundredths)
		case "memory":
			return cmp.Compare(b.Megabytes, a.Megabytes)
		}
		return 0
	})
}

// stream makes a response a stream of events, and returns what writes one. Whoever takes nothing is cut off.
func (s *Server) stream(w http.ResponseWriter) func(event string, data []byte) error {
	c := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold it back
	return func(event string, data []byte) error {
		if err := c.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
			return err
		}
		text := ": beat\n\n"
		if event != "" {
			text = "event: " + event + "\ndata: " + string(data) + "\n\n" // JSON has no line ends
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		return c.Flush()
	}
}

// live streams what changes in the list.
func (s *Server) live(w http.ResponseWriter, r *http.Request) {
	key := s.key(r)
	if !s.streams.take(key) {
		w.Header().Set("Retry-After", "30")
		http.Error(w, "too many pages are live", http.StatusServiceUnavailable)
		return
	}
	defer s.streams.leave(key)
	defer s.hub.join()()
	version, _ := strconv.ParseUint(r.FormValue("version"), 10, 64)
	only := r.FormValue("only")
	send := s.stream(w)
	if send("", nil) != nil {
		return
	}
	heart := time.NewTicker(beat)
	defer heart.Stop()
	for {
		data, now, more := s.hub.encoded(version, only)
		if version = now; data != "" {
			if send("rows", []byte(data)) != nil {
				return
			}
			select { // what comes meanwhile comes together
			case <-time.After(pace):
			case <-r.Context().Done():
				return
			}
		}
		select {
		case <-more:
		case <-heart.C:
			if send("", nil) != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.ended:
			return
		}
	}
}

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
	Log      logView
	Events   []eventView
	Done     string
}

func (s *Server) service(w http.ResponseWriter, r *http.Request) {
	st, err := s.hub.current(r.Context())
	v := find(st, r.PathValue("name"))
	if v == nil {
		if err != nil {
			s.fail(w, r, http.StatusBadGateway, plain(err.Error()))
			return
		}
		s.fail(w, r, http.StatusNotFound, "There is no service of that name.")
		return
	}
	page := servicePage{
		rowView: s.view(v, s.hub.uses(v.Name)), PID: v.PID, Run: v.Run, Reason: plain(v.Reason), Failures: v.ConsecutiveFailures,
		Next: v.NextStart, Exits: make(map[string]int, len(v.Exits)), Done: done[r.FormValue("done")],
	}
	if err != nil {
		page.Fault = plain(err.Error())
	}
	for cause, n := range v.Exits {
		page.Exits[plain(cause)] += n
	}
	page.Command = plain(strings.Join(v.Command, " "))
	if v.LastExit != nil {
		for _, line := range v.LastExit.Tail {
			page.Tail = append(page.Tail, logText(hide(line)))
		}
	}
	for _, e := range s.hub.history() {
		if e.Service == v.Name {
			page.Events = append(page.Events, viewEvent(e))
		}
	}
	page.Events = page.Events[max(0, len(page.Events)-20):]
	page.Log = s.readLog(r, st.Init, v)
	s.show(w, r, http.StatusOK, "service", v.Name, page)
}

// done are the words after a command.
var done = map[string]string{"start": "It was told to start.", "stop": "It was told to stop.", "restart": "It was told to restart."}

// fail shows why a page is none.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	s.show(w, r, code, "fail", "Not done", why)
}

// command starts, stops or restarts a service.
func (s *Server) command(w http.ResponseWriter, r *http.Request) {
	name, verb := r.PathValue("name"), r.PathValue("verb")
	do := map[string]func(context.Context, string, client.Wait) (client.Service, error){
		"start": s.Hinit.Start, "stop": s.Hinit.Stop, "restart": s.Hinit.Restart,
	}[verb]
	_, bearer := bearer(r) // no browser adds it by itself, as it does with Basic
	switch {
	case do == nil:
		s.fail(w, r, http.StatusNotFound, "There is no such command.")
		return
	case !s.mayControl(r):
		s.fail(w, r, http.StatusForbidden, "This page is for reading. To control from here, start hinit web with a token, or on a Unix socket.")
		return
	case !bearer && !s.fromOurPage(r):
		s.fail(w, r, http.StatusForbidden, "The form is not of a page that this browser has from here. Go back, load the page again and repeat it.")
		return
	}
	if _, err := do(r.Context(), name, client.Wait{}); err != nil {
		code := http.StatusBadGateway
		switch {
		case errors.Is(err, client.ErrUnknown):
			code = http.StatusNotFound
		case errors.Is(err, client.ErrNotAllowed):
			code = http.StatusForbidden
		}
		s.Log.Warn("refused", "verb", verb, "service", name, "remote", remote(r), "error", err)
		s.fail(w, r, code, plain(err.Error()))
		return
	}
	s.Log.Info("told", "verb", verb, "service", name, "remote", remote(r))
	http.Redirect(w, r, s.Base+"/service/"+template.URLQueryEscaper(name)+"?done="+verb, http.StatusSeeOther)
}

func (s *Server) loginPage(w http.ResponseWriter, r *http.Request) {
	if s.Token == "" {
		s.fail(w, r, http.StatusNotFound, "There is no token to log in with.")
		return
	}
	s.show(w, r, http.StatusOK, "login", "Log in", "")
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	switch {
	case s.Token == "":
		s.fail(w, r, http.StatusNotFound, "There is no token to log in with.")
	case !s.fromOurPage(r):
		s.show(w, r, http.StatusForbidden, "login", "Log in", "The form was too old; try again.")
	case same(r.PostFormValue("token"), s.Token):
		s.beginSession(w, r)
		http.Redirect(w, r, s.Base+"/", http.StatusSeeOther)
	case !s.guesses.allow(remote(r)):
		s.tooManyGuesses(w)
		s.show(w, r, http.StatusTooManyRequests, "login", "Log in", "Too many wrong tokens from this address. Wait a minute, or enter the right one.")
	default:
		s.Log.Warn("wrong token", "remote", remote(r))
		s.show(w, r, http.StatusForbidden, "login", "Log in", "That is not the token.")
	}
}

func (s *Server) tooManyGuesses(w http.ResponseWriter) { w.Header().Set("Retry-After", "60") }

func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	if s.fromOurPage(r) {
		s.setCookie(w, r, sessionCookie, "", -1)
	}
	http.Redirect(w, r, s.Base+"/", http.StatusSeeOther)
}
