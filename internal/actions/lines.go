package actions

import (
	"context"
	"encoding/json"
	"time"

	"hinit/client"
)

// linesTime is how long a message waits at most for the last lines of a service that has ended. The status says that it has ended
// before its output is read to the end.
const linesTime = 10 * time.Second

// lines are the last log lines of an end that are still to come to a job.
type lines struct {
	end  time.Time     // when the service ended
	came chan struct{} // closed when they are there
	late <-chan time.Time
}

// linesToCome returns what a message about a service has to wait for, nil if nothing.
func linesToCome(s *client.Service) *lines {
	if x := s.LastExit; x == nil || !x.TailPending || time.Since(x.At) > linesTime {
		return nil
	}
	return &lines{end: s.LastExit.At, came: make(chan struct{}), late: time.After(linesTime)}
}

// awaitLines returns when the lines of a job are there or will not come any more. From then on its body stays as it is.
func (r *Runner) awaitLines(ctx context.Context, j *Job) {
	r.mu.Lock()
	l := j.lines
	r.mu.Unlock()
	if l == nil {
		return
	}
	select {
	case <-l.came:
	case <-l.late:
	case <-ctx.Done():
	}
	r.mu.Lock()
	j.lines = nil
	r.mu.Unlock()
}

// complete gives jobs the lines that have come since, and returns whether there were any. The caller holds the lock.
func (r *Runner) complete(services []client.Service) (changed bool) {
	for _, j := range r.state.Jobs {
		if j.lines == nil {
			continue
		}
		for i := range services {
			x := services[i].LastExit
			if services[i].Name != j.Service || x == nil || x.TailPending || !x.At.Equal(j.lines.end) {
				continue
			}
			var m Message
			if json.Unmarshal(j.Body, &m) == nil { // message made it
				m.Tail = shownTail(x)
				j.Body = m.text()
			}
			close(j.lines.came)
			j.lines, changed = nil, true
			break
		}
	}
	return changed
}
