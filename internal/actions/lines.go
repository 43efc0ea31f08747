package actions

import (
	"context"
	"encoding/json"
	"time"

	"hinit/client"
)

// linesTime is the longest time that a message waits for the last log lines of a service that has ended. The status reports the end
// before all output is read.
const linesTime = 10 * time.Second

// lines says which last log lines a job waits for.
type lines struct {
	end  time.Time     // when the service ended
	came chan struct{} // closed when the lines have arrived
	late <-chan time.Time
}

// linesToCome returns the lines that a message about a service has to wait for, or nil.
func linesToCome(s *client.Service) *lines {
	if x := s.LastExit; x == nil || !x.TailPending || time.Since(x.At) > linesTime {
		return nil
	}
	return &lines{end: s.LastExit.At, came: make(chan struct{}), late: time.After(linesTime)}
}

// awaitLines returns when the lines of a job have arrived, or when the wait is over. After that the job's body does not change.
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

// complete adds the lines that have arrived to the waiting jobs, and reports whether it changed a job. The caller holds the lock.
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
			if json.Unmarshal(j.Body, &m) == nil { // never fails, because text made it
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
