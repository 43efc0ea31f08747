package web

import (
	"net/http"
	"strconv"
	"time"
)

// stream makes the response a stream of events, and returns a function that writes one. A client that does not read is cut off.
func (s *Server) stream(w http.ResponseWriter) func(event string, data []byte) error {
	c := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // or nginx would buffer the stream
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

// live streams the changes of the list.
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
			select { // changes during the pause are sent together
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
