package control

import (
	"context"
	"hash/maphash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// maxEventBatch is the maximum number of events in the memory of the server for one client.
const maxEventBatch = 64

// getEvents streams the history as JSON lines. since=N begins after event N, last=N sends at most N past events, and follow=1
// continues with new events. By default it sends the whole history: the newest events of all services, and the last few events
// of each service even if they are older. A slow reader gets a line with the number of lost events.
func getEvents(s *Server, r *request) (out reply, err error) {
	query := r.query
	ring := s.backend.History()
	newest := ring.Last()
	var cursor uint64
	var kept, end uint64 // sequence numbers of the events that are older than the ring of newest events; these events come first
	if query.Has("since") {
		if cursor, err = parseNumber(query.Get("since"), "since"); err != nil {
			return reply{}, err
		}
		if cursor > newest {
			return reply{}, newError(client.KindBadRequest,
				"event %d has not happened, the newest is %d; hinit counts from 1 each time it starts", cursor, newest)
		}
	} else if records, _ := ring.Since(0); len(records) > 0 {
		cursor = records[0].Seq - 1 // the client did not ask for older events, so they are not lost
		end = records[0].Seq
	}
	if query.Has("last") {
		last, err := parseNumber(query.Get("last"), "last")
		if err != nil {
			return reply{}, err
		}
		older := ring.KeptBetween(0, end)
		if n := last - min(last, newest-cursor); n < uint64(len(older)) {
			kept = older[uint64(len(older))-n-1].Seq
		}
		cursor = max(cursor, newest-min(newest, last))
	}
	follow, err := r.follow()
	if err != nil {
		return reply{}, err
	}
	return s.stream(r, follow, func(out *jsonLineWriter) { s.events(out, r.Context(), kept, end, cursor, follow) })
}

// follow reports whether the client asks for new records after the existing ones.
func (r *request) follow() (bool, error) {
	switch follow := r.query.Get("follow"); follow {
	case "", "0", "1":
		return follow == "1", nil
	default:
		return false, newError(client.KindBadRequest, "follow is %q; it is 1 or 0", follow)
	}
}

func parseNumber(text, name string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, newError(client.KindBadRequest, "%s is %q; it is a whole number", name, text)
	}
	return n, nil
}

// events writes the older events between kept and end, and then the events after cursor. If follow is set, it continues with
// new events until the client stops reading or the server ends. Before the end of the server, it writes all known events.
func (s *Server) events(out *jsonLineWriter, ctx context.Context, kept, end, cursor uint64, follow bool) {
	ring := s.backend.History()
	for out.err == nil {
		older := ring.KeptBetween(kept, end)
		if len(older) == 0 {
			break
		}
		older = slices.Clone(older[:min(maxEventBatch, len(older))])
		for _, rec := range older {
			out.write(toClientEvent(rec))
			kept = rec.Seq
		}
	}
	out.writeUpdates(ctx, follow, ring.Changed, func() (more bool) {
		records, lost := ring.Since(cursor)
		records, more = firstBatch(records)
		if lost > 0 {
			out.write(client.LostEvents{Lost: lost})
			cursor += lost
		}
		for i := range records {
			out.write(toClientEvent(&records[i]))
			cursor = records[i].Seq
		}
		return more
	})
}

// firstBatch returns a copy of the first maxEventBatch items, and whether more follow. The copy prevents a slow client from
// holding the whole list in memory.
func firstBatch[T any](all []T) (some []T, more bool) {
	if len(all) <= maxEventBatch {
		return all, false
	}
	return slices.Clone(all[:maxEventBatch]), true
}

// stream answers with the JSON lines from write. With follow, the request counts as a request without a time limit.
func (s *Server) stream(r *request, follow bool, write func(out *jsonLineWriter)) (reply, error) {
	if follow {
		if err := s.countWaiting(r); err != nil {
			return reply{}, err
		}
	}
	return reply{stream: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		write(&jsonLineWriter{server: s, w: w, flush: http.NewResponseController(w)})
	}}, nil
}

// jsonLineWriter writes JSON lines to a client that may be slow. Each line has a deadline. The first failure ends the stream.
type jsonLineWriter struct {
	server *Server
	w      http.ResponseWriter
	flush  *http.ResponseController
	err    error
}

func (l *jsonLineWriter) write(v any) {
	if l.err != nil {
		return
	}
	l.server.extendWriteDeadline(l.w)
	if line, made := v.([]byte); made {
		_, l.err = l.w.Write(line)
		return
	}
	l.err = newEncoder(l.w).Encode(v)
}

// writeUpdates calls writeBatch, which writes lines, until it returns false. If follow is set, it repeats the call after each
// change, until ctx ends. changed returns a channel that is closed at the next change.
func (l *jsonLineWriter) writeUpdates(ctx context.Context, follow bool, changed func() <-chan struct{}, writeBatch func() (more bool)) {
	for {
		ending := !follow || ctx.Err() != nil
		next := changed()
		more := writeBatch()
		l.end()
		switch {
		case l.err != nil, ending && !more:
			return
		case more:
			continue
		}
		pause.Until(ctx, next)
	}
}

func (l *jsonLineWriter) end() {
	if l.err == nil {
		l.server.extendWriteDeadline(l.w)
		l.err = l.flush.Flush()
	}
}

func toClientEvent(rec *supervisor.Record) client.Event {
	e := client.Event{
		Seq: rec.Seq, At: recordedTime(rec.At), Service: rec.Service, FromState: string(rec.From), ToState: string(rec.To),
		Reason: rec.Reason, PID: rec.PID, NoticeKey: rec.Key, NoticeData: rec.Data, Author: rec.By,
	}
	if rec.Exit != nil {
		e.Exit = toClientExit(rec.Exit)
		e.Exit.Tail = []string{} // the history has no log lines
	}
	return e
}

const (
	maxNoticeKey  = 64
	maxNoticeData = 1024
)

// Notices are events that clients add to the history of hinit. A class of clients may add noticeBurst at once, and noticeRate
// per second. The limit leaves space for hinit's own events.
const (
	noticeRate  = 2
	noticeBurst = 50
)

// noticeLimit is the limit of notices for one class of clients.
type noticeLimit struct {
	mu        sync.Mutex
	usedUntil time.Time // each accepted notice advances this time by 1/noticeRate s; a notice that would advance it beyond now is refused
}

// allow counts a notice, or returns false if there were too many.
func (n *noticeLimit) allow(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	const step = time.Second / noticeRate
	if first := now.Add(-noticeBurst * step); n.usedUntil.Before(first) {
		n.usedUntil = first
	}
	if n.usedUntil.Add(step).After(now) {
		return false
	}
	n.usedUntil = n.usedUntil.Add(step)
	return true
}

func postNotice(s *Server, r *request, n client.Notice) (reply, error) {
	switch {
	case !isNoticeKey(n.Key):
		return reply{}, newError(client.KindBadRequest, "the key is %q; it is 1 to %d letters, digits and \"./_-\"", n.Key, maxNoticeKey)
	case len(n.Data) > maxNoticeData:
		return reply{}, newError(client.KindBadRequest, "the data has %d bytes; it has %d at most", len(n.Data), maxNoticeData)
	case !s.noticeLimit[s.policy.classOf(r.client)].allow(s.now()):
		return reply{}, newError(client.KindFailed, "too many notices; there may be %d a second, and %d at once", noticeRate, noticeBurst)
	}
	event := supervisor.Remark{Text: "notice " + n.Key, Key: n.Key, Data: supervisor.ShortenText(show.EscapeLine(n.Data)), Service: s.serviceOf(r.client)}
	if n.Data != "" {
		event.Text += ": " + event.Data
	}
	return reply{status: http.StatusNoContent}, s.backend.Do(r.Context(), event)
}

// serviceOf returns the service to whose session the client belongs, or "".
func (s *Server) serviceOf(caller peer) string {
	for _, v := range s.backend.Snapshot().Services {
		if proc.InSession(int(caller.pid), v.PID) && !caller.isGone() {
			return v.Name
		}
	}
	return ""
}

func isNoticeKey(key string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-"
	return key != "" && len(key) <= maxNoticeKey && strings.Trim(key, letters) == ""
}

// minStatusInterval is the shortest time between two lines of a status stream.
const minStatusInterval = time.Second

// minReapInterval is the minimum time between two searches of a status stream for ended processes that the kernel has not reported. A
// search reads a file for each service, which costs more than the rest of an idle stream.
const minReapInterval = 10 * time.Second

var problemHashSeed = maphash.MakeSeed()

// statusFollower is a client that follows the status. It stores the last status that was sent, and no queue of lines, so a slow
// reader costs no memory.
type statusFollower struct {
	server        *Server
	client        peer
	sentServices  []*supervisor.Service
	reapedAt      time.Time
	problemHashes []uint64 // checksums of long problem texts in the last line, because such a text can change without its service
}

// nextChange returns the changes of the status since the last call. The first call returns all services, and so does a call
// after a service was added or removed.
func (f *statusFollower) nextChange(ctx context.Context) (change client.StatusChange, any bool) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	if now := f.server.now(); now.Sub(f.reapedAt) >= minReapInterval {
		for _, v := range f.sentServices {
			f.server.reapAndRead(ctx, v)
		}
		f.reapedAt = now
	}
	snap, added := f.server.snapshotWithExpected(ctx, nil)
	services := servicesInStatus(snap)
	same := f.sentServices != nil && slices.EqualFunc(services, f.sentServices, func(a, b *supervisor.Service) bool { return a.Name == b.Name })
	problems := make([]uint64, len(services))
	change = client.StatusChange{IsComplete: !same, Init: f.server.initStatus(snap), Services: []client.Service{}}
	for i, v := range services {
		problems[i] = maphash.String(problemHashSeed, f.server.problemText(v, f.server.policy.classOf(f.client) != otherClass))
		if !same || v != f.sentServices[i] || problems[i] != f.problemHashes[i] {
			change.Services = append(change.Services, f.server.serviceStatus(ctx, v, f.client, added))
		}
	}
	if change.IsComplete {
		change.Init.FirstOOMVictim = firstOOMVictim(snap.Services, change.Services)
	}
	shortenTails(change.Services)
	f.sentServices, f.problemHashes = services, problems
	return change, change.IsComplete || len(change.Services) > 0
}

// getFollow streams the status and its changes, until the client stops reading or the server ends. It waits for minStatusInterval after
// each written line before the next snapshot. So the cost of a reader doesn't grow with the number of changes.
func getFollow(s *Server, r *request) (reply, error) {
	return s.stream(r, true, func(out *jsonLineWriter) {
		f := &statusFollower{server: s, client: r.client}
		beat := time.After(0)
		due := true
		for {
			next := s.backend.Changed()
			line, err := s.makeAnswerLimited(r, func() (reply, error) {
				if change, changed := f.nextChange(r.Context()); changed || due {
					return okReply(change)
				}
				return reply{}, nil
			})
			if line.onSent != nil {
				out.write(line.body)
				out.end()
				line.onSent()
				beat = time.After(client.WatchInterval)
			}
			if err != nil || out.err != nil {
				return
			}
			if !pause.For(r.Context(), minStatusInterval) {
				return
			}
			due = false
			select {
			case <-next:
			case <-beat:
				due = true
			case <-r.Context().Done():
				return
			}
		}
	})
}
