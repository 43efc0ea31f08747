package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/redact"
	"hinit/logrotate"
)

const (
	usualLines = 200
	mostLines  = 2000
	searchTime = 4 * time.Second
)

// logView is the log of a service, or why there is none.
type logView struct {
	There   bool
	Query   string
	N       int
	Archive bool
	Lines   []string
	Note    string
}

// readLog reads the last lines of a service's log, of those that match where something is searched for.
func (s *Server) readLog(r *http.Request, init client.Init, v *client.Service) logView {
	view := logView{There: v.Log != "", Query: r.FormValue("q"), N: usualLines, Archive: r.FormValue("archives") != ""}
	if !view.There {
		view.Note = "It has no log file; what it writes is in the container's log."
		return view
	}
	if n, err := strconv.Atoi(r.FormValue("n")); err == nil {
		view.N = max(1, min(n, mostLines))
	}
	select {
	case s.searches <- struct{}{}:
		defer func() { <-s.searches }()
	case <-time.After(searchTime):
		view.Note = "Too many logs are read at the moment; try again."
		return view
	}
	ctx, cancel := context.WithTimeout(r.Context(), searchTime)
	defer cancel()
	o := logrotate.ReadOptions{Dir: filepath.Dir(v.Log), N: view.N, Previous: view.Archive}
	if view.Query != "" {
		o.N = -1
	}
	as, err := s.LogsAs(init)
	if err != nil {
		view.Note = plain(err.Error())
		return view
	}
	err = logrotate.Read(ctx, as, o, matching(view.Query, func(line string) error {
		if view.Lines = append(view.Lines, line); len(view.Lines) >= 2*view.N {
			view.Lines = append(view.Lines[:0], view.Lines[len(view.Lines)-view.N:]...)
		}
		return nil
	}))
	view.Lines = view.Lines[max(0, len(view.Lines)-view.N):]
	switch {
	case errors.Is(err, fs.ErrNotExist):
		view.Note = "It has written nothing yet."
	case err != nil:
		view.Note = plain(err.Error())
	case ctx.Err() != nil:
		view.Note = "The search took too long; these are the matches of the older part. To search all: hinit logs --grep"
	case len(view.Lines) == 0 && view.Query != "":
		view.Note = "No line has that text."
	}
	return view
}

// matching gives the lines that contain a text, in any case, to emit, as the page shows them.
func matching(query string, emit func(line string) error) func(line []byte) error {
	var mask redact.Masker
	wanted := bytes.ToLower([]byte(query))
	return func(line []byte) error {
		if len(line) > 16<<10 {
			line = line[:16<<10]
		}
		line = bytes.TrimSuffix(mask.Hide(append(bytes.Clone(line), '\n'), nil), []byte{'\n'})
		if !bytes.Contains(bytes.ToLower(line), wanted) {
			return nil
		}
		return emit(logText(string(line)))
	}
}

// follow streams the lines that a service writes from now on.
func (s *Server) follow(w http.ResponseWriter, r *http.Request) {
	st, _ := s.hub.current(r.Context())
	v := find(st, r.PathValue("name"))
	if v == nil || v.Log == "" {
		http.Error(w, "there is no such log", http.StatusNotFound)
		return
	}
	as, err := s.LogsAs(st.Init)
	if err != nil {
		http.Error(w, plain(err.Error()), http.StatusInternalServerError)
		return
	}
	key := s.key(r)
	if !s.followers.take(key) {
		http.Error(w, "too many pages follow a log", http.StatusServiceUnavailable)
		return
	}
	defer s.followers.leave(key)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	send := s.stream(w)
	if send("", nil) != nil {
		return
	}
	lines := make(chan string, 256)
	o := logrotate.ReadOptions{Dir: filepath.Dir(v.Log), N: 0, Follow: true}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_ = logrotate.Read(ctx, as, o, matching(r.FormValue("q"), func(line string) error {
			select {
			case lines <- line:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
	}()
	defer func() { cancel(); <-read }()
	heart := time.NewTicker(beat)
	defer heart.Stop()
	for {
		select {
		case line := <-lines:
			batch := []string{line}
			for more := true; more && len(batch) < 200; {
				select {
				case line := <-lines:
					batch = append(batch, line)
				default:
					more = false
				}
			}
			data, err := json.Marshal(strings.Join(batch, "\n"))
			if err != nil || send("lines", data) != nil {
				return
			}
		case <-heart.C:
			if send("", nil) != nil {
				return
			}
		case <-read:
			return
		case <-s.ended:
			return
		}
	}
}
