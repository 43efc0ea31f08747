package web

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"hinit/client"
	"hinit/internal/loglevel"
	"hinit/internal/pause"
	"hinit/internal/redact"
	"hinit/logrotate/reader"
)

const (
	defaultLines    = 200
	maxLines        = 2000
	maxBytes        = 4 << 20          // limit of the text of the lines on one page, in bytes
	linkContextTime = 10 * time.Minute // how far before the line of a link the shown log begins
)

// errEnoughLines stops the reading of a log after enough lines.
var errEnoughLines = errors.New("enough lines")

// logView is the part of a page that shows a service's log, or says why it can't.
type logView struct {
	Exists, Whole, Archive    bool // Whole: the log fills the page
	Name, Query, Level, Since string
	At                        string // time of the line in the link, in nanoseconds
	N                         int
	Levels                    []string
	Periods                   [][2]string
	Lines                     []logLine
	Note                      string
	Download                  string
}

type logLine struct{ ID, Time, Text, Class string }

// searchTimeout and writeTimeout limit the duration of a search and of writing an answer. They are variables because tests with
// the race detector need more time.
var searchTimeout, writeTimeout = 4 * time.Second, 10 * time.Second

// searchPeriods are the periods that the form of the search offers.
var searchPeriods = [][2]string{{"", "from any time"}, {"10m", "last 10 minutes"}, {"1h", "last hour"}, {"24h", "last day"}, {"168h", "last week"}}

// logSearch is a search for log lines: its conditions, and its progress.
type logSearch struct {
	reader.Options
	text     []byte
	minLevel loglevel.Level
	lines    loglevel.Tracker
	mask     redact.Masker
}

func newSearch(r *http.Request, log string, n int) *logSearch {
	s := &logSearch{text: bytes.ToLower([]byte(r.FormValue("q"))), minLevel: loglevel.Parse([]byte(r.FormValue("level")))}
	s.Dir, s.LastLines = filepath.Dir(log), n
	if d, err := time.ParseDuration(r.FormValue("since")); err == nil && d > 0 {
		s.Since, s.LastLines = time.Now().Add(-d), -1
	}
	if at := lineTimeParameter(r); !at.IsZero() {
		s.Since, s.LastLines = at.Add(-linkContextTime), -1
	}
	if len(s.text) > 0 || s.minLevel != 0 {
		s.LastLines = -1
	}
	s.Previous = r.FormValue("archives") != "" && s.Since.IsZero()
	return s
}

// lineTimeParameter returns the parameter "at" of a request, the time of the log line in a link. It is zero if the parameter is
// missing.
func lineTimeParameter(r *http.Request) (at time.Time) {
	if ns, err := strconv.ParseInt(r.FormValue("at"), 10, 64); err == nil {
		at = time.Unix(0, ns)
	}
	return at
}

const maxLine = 16 << 10

// parseMatch converts a log line to a line of the page. is reports whether the line matches the search; otherwise out is empty.
func (s *logSearch) parseMatch(line []byte) (out logLine, is bool) {
	line = s.mask.Hide(line, nil) // hide secrets first, because a cut could leave the beginning of a secret
	line = line[:min(len(line), maxLine)]
	written, text, _ := reader.SplitLine(line)
	level := s.lines.OfNextLine(text)
	if level < s.minLevel || !bytes.Contains(bytes.ToLower(line), s.text) {
		return out, false
	}
	out.Text = logText(string(text))
	if !written.IsZero() {
		out.ID, out.Time = strconv.FormatInt(written.UnixNano(), 10), written.UTC().Format("2006-01-02 15:04:05.000")
	}
	switch {
	case level >= loglevel.Error:
		out.Class = "bad"
	case level == loglevel.Warning:
		out.Class = "wait"
	case level < loglevel.Info:
		out.Class = "fine"
	}
	return out, true
}

// readLog returns the last lines of a service's log that match the search in the request. If the request contains the time of a
// line (at), it returns the lines around it.
func (s *Server) readLog(r *http.Request, v pageService) logView {
	view := logView{
		Exists: v.Log != "", Name: v.Name, Query: r.FormValue("q"), N: defaultLines, Archive: r.FormValue("archives") != "",
		Since: r.FormValue("since"), Periods: searchPeriods, Levels: loglevel.Names(), At: r.FormValue("at"),
	}
	if !view.Exists {
		view.Note = "It has no log file; its output is in the container's log."
		return view
	}
	if l := loglevel.Parse([]byte(r.FormValue("level"))); l != 0 {
		view.Level = l.String()
	}
	view.Download = s.Base + "/service/" + url.PathEscape(v.Name) + "/download?" + url.Values{
		"q": {view.Query}, "level": {view.Level}, "since": {view.Since}, "archives": {r.FormValue("archives")},
	}.Encode()
	if n, err := strconv.Atoi(r.FormValue("n")); err == nil {
		view.N = max(1, min(n, maxLines))
	}
	at, after, size, long := lineTimeParameter(r), 0, 0, false
	// A private key may begin before the shown lines, so read more lines.
	err := s.searchLog(r, v.init, newSearch(r, v.Log, view.N+redact.MaxKeyLines), searchTimeout, func(line logLine) error {
		view.Lines, size = append(view.Lines, line), size+len(line.Text)
		for len(view.Lines) > view.N || size > maxBytes {
			long = long || size > maxBytes
			size -= len(view.Lines[0].Text)
			view.Lines[0] = logLine{} // free the text of the dropped line
			view.Lines = view.Lines[1:]
		}
		if !at.IsZero() && line.ID >= view.At { // both numbers have the same length until the year 2286, so compare their texts
			if after++; after > view.N/2 {
				return errEnoughLines
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnoughLines):
	case errors.Is(err, fs.ErrNotExist):
		view.Note = "It has written nothing yet."
	case errors.Is(err, context.DeadlineExceeded):
		view.Note = "The search took too long; these are the matches of the older part. To search all: hinit logs --grep"
	case err != nil:
		view.Note = oneLine(err.Error())
	case long:
		view.Note = "The lines are too long for one page; these are the last ones. Download the log to see all."
	case len(view.Lines) == 0 && (view.Query != "" || view.Level != "" || view.Since != ""):
		view.Note = "No line matches."
	}
	return view
}

// searchLog calls emit for each log line that matches the search. Few searches run at a time: searchLog waits for its turn, at
// most for searchTimeout, and then fails. The owner of the page has separate turns that other clients can't use. After limit, the
// error is [context.DeadlineExceeded].
func (s *Server) searchLog(r *http.Request, init client.Init, search *logSearch, limit time.Duration, emit func(logLine) error) error {
	key := s.limitKey(r)
	for end := time.Now().Add(searchTimeout); !s.searches.acquire(key); {
		if time.Now().After(end) || !pause.For(r.Context(), searchTimeout/100) {
			return errors.New("too many logs are read at the moment; try again")
		}
	}
	defer s.searches.release(key)
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	as, err := s.LogReader(init)
	if err != nil {
		return err
	}
	err = reader.Read(ctx, as, search.Options, func(line []byte) error {
		if out, is := search.parseMatch(line); is {
			return emit(out)
		}
		return nil
	})
	return cmp.Or(err, ctx.Err())
}

func (s *Server) logPage(w http.ResponseWriter, r *http.Request, v pageService) {
	page := s.readLog(r, v)
	page.Whole = true
	s.showPage(w, r, http.StatusOK, "log", v.Name+", log", page)
}

// downloadTimeout is the time limit for the download of a log.
const downloadTimeout = time.Minute

func (s *Server) download(w http.ResponseWriter, r *http.Request, v pageService) {
	if v.Log == "" {
		s.showServiceError(w, r, nil)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(downloadTimeout))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": v.Name + ".log"}))
	out := bufio.NewWriter(w)
	err := s.searchLog(r, v.init, newSearch(r, v.Log, -1), downloadTimeout, func(line logLine) error {
		_, err := fmt.Fprintf(out, "%s  %s\n", line.Time, line.Text)
		return err
	})
	if err != nil {
		_, _ = fmt.Fprintf(out, "hinit web: the log ends here: %s\n", oneLine(err.Error()))
	}
	_ = out.Flush()
}

func (s *Server) streamLog(w http.ResponseWriter, r *http.Request, v pageService) {
	if v.Log == "" {
		http.Error(w, "there is no such log", http.StatusNotFound)
		return
	}
	as, err := s.LogReader(v.init)
	if err != nil {
		http.Error(w, oneLine(err.Error()), http.StatusInternalServerError)
		return
	}
	what := newSearch(r, v.Log, 0)
	what.LastLines, what.Since, what.Previous, what.Follow = 0, time.Time{}, false, true
	s.stream(w, r, s.followers, "lines", 256, func(ctx context.Context, out chan<- []byte) {
		_ = reader.Read(ctx, as, what.Options, func(line []byte) error {
			shown, is := what.parseMatch(line)
			if !is {
				return nil
			}
			data, err := json.Marshal([]logLine{shown})
			if err == nil && !pause.Send(ctx, out, data) {
				err = ctx.Err()
			}
			return err
		})
	})
}
