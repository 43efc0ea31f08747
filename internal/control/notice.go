package control

import (
	"net/http"
	"regexp"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/proc"
	"hinit/supervisor"
)

const (
	maxKey  = 64
	maxData = 1024
)

// Notices are events that clients send. They share the history with hinit's own events. To leave room for hinit's own events, a
// burst of at most noticeBurst notices is accepted, and then noticeRate notices per second.
const (
	noticeRate  = 2
	noticeBurst = 50
)

// noticeLimit limits the rate of notices of one class of callers.
type noticeLimit struct {
	mu    sync.Mutex
	spent time.Time // time up to which accepted notices have used up the rate; never in the future
}

// allow reports whether another notice is accepted now, and counts it.
func (n *noticeLimit) allow(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	const step = time.Second / noticeRate
	if first := now.Add(-noticeBurst * step); n.spent.Before(first) {
		n.spent = first
	}
	if n.spent.Add(step).After(now) {
		return false
	}
	n.spent = n.spent.Add(step)
	return true
}

func postNotice(s *Server, r *request, n client.Notice) (reply, error) {
	switch {
	case !isNoticeKey(n.Key):
		return reply{}, refuse(client.KindBadRequest, "the key is %q; it is 1 to %d letters, digits and \"./_-\"", n.Key, maxKey)
	case len(n.Data) > maxData:
		return reply{}, refuse(client.KindBadRequest, "the data has %d bytes; it has %d at most", len(n.Data), maxData)
	case !s.noticeLimit[s.policy.classOf(r.who)].allow(s.now()):
		return reply{}, refuse(client.KindFailed, "too many notices; there may be %d a second, and %d at once", noticeRate, noticeBurst)
	}
	event := supervisor.Remark{Text: "notice " + n.Key, Key: n.Key, Data: show.Line(n.Data)}
	if n.Data != "" {
		event.Text += ": " + event.Data
	}
	for _, v := range s.core.Snapshot().Services {
		if proc.InSession(int(r.who.pid), v.PID) {
			event.Service = v.Name
			break
		}
	}
	return reply{status: http.StatusNoContent}, s.core.Do(r.Context(), event)
}

var validKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Za-z./_-]+$`) })

func isNoticeKey(key string) bool { return len(key) <= maxKey && validKey().MatchString(key) }
