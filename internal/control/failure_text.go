package control

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/supervisor"
)

const (
	tailLines = 3   // of a log in an error message
	tailWidth = 200 // bytes of one of them
)

// account reports on a service that failed to start: its state, how the run ended, and its last log lines, quoted for a terminal.
func (s *Server) account(ctx context.Context, v *supervisor.Service) string {
	v = s.withTail(ctx, v)
	var b strings.Builder
	x := v.LastExit
	reason := v.Reason
	if v.State == supervisor.Down && x != nil { // a task: that it is down is not the news
		reason = endText(x)
	}
	over := slices.Contains([]supervisor.State{supervisor.Backoff, supervisor.Parked, supervisor.Failed, supervisor.Down}, v.State)
	again := x != nil && x.PID != 0 && !over // who tells was late: the news is how the last run ended, not that there is another
	if again {
		fmt.Fprintf(&b, "%s %s", v.Name, endText(x))
	} else {
		fmt.Fprintf(&b, "%s is %s: %s", v.Name, stateText(v), printable(reason))
	}
	if x != nil {
		fmt.Fprintf(&b, " (%s)", x.Cause)
	}
	if again {
		fmt.Fprintf(&b, " and is %s again", stateText(v))
	}
	if wait := time.Until(v.NextStart); !v.NextStart.IsZero() && wait > 0 {
		fmt.Fprintf(&b, ", starts again in %s", rounded(wait))
	}
	if x != nil && len(x.Tail) > 0 {
		b.WriteString("; last lines: ")
		for i, line := range x.Tail[max(0, len(x.Tail)-tailLines):] {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(quote(line))
		}
	}
	return b.String()
}

// overdue reports how far a command has come when its time is over.
func overdue(g goal, v *supervisor.Service, timeout time.Duration) string {
	switch {
	case v.State == supervisor.Up && g.want == supervisor.WantUp && v.Run > g.after && v.Announces:
		text := fmt.Sprintf("%s is up (pid %d) and has not said within %s that it is ready", v.Name, v.PID, rounded(timeout))
		if v.Said != "" {
			text += ": " + printable(v.Said)
		}
		return text
	case v.State == supervisor.Up && g.want == supervisor.WantUp && v.Run > g.after:
		return fmt.Sprintf("%s is up, but was not for %s within %s", v.Name, g.settle, rounded(timeout))
	}
	return fmt.Sprintf("%s is not %s after %s: it is %s: %s", v.Name, g.past, rounded(timeout), stateText(v), printable(v.Reason))
}

func stateText(v *supervisor.Service) string {
	switch {
	case v.State == supervisor.Backoff && v.CrashLoop:
		return "in a crash loop"
	case v.State == supervisor.Backoff:
		return "in backoff"
	}
	return string(v.State)
}

func endText(x *supervisor.Exit) string {
	switch {
	case x.PID == 0:
		return x.Error
	case x.Signal != 0:
		return fmt.Sprintf("ended by signal %d", x.Signal)
	}
	return fmt.Sprintf("exited with code %d", x.Code)
}

// withTail waits up to tailTime for the last log lines of the run that ended.
func (s *Server) withTail(ctx context.Context, v *supervisor.Service) *supervisor.Service {
	if v.LastExit == nil || v.LastExit.PID == 0 {
		return v // it wrote nothing
	}
	timeout := time.NewTimer(tailTime)
	defer timeout.Stop()
	for len(v.LastExit.Tail) == 0 {
		news := s.core.News()
		now := s.core.Snapshot().Find(v.Name)
		if now == nil || now.LastExit == nil || now.LastExit.Run != v.LastExit.Run {
			return v
		}
		if len(now.LastExit.Tail) > 0 {
			with := *v
			with.LastExit = now.LastExit
			return &with
		}
		select {
		case <-news:
		case <-timeout.C:
			return v
		case <-ctx.Done():
			return v
		}
	}
	return v
}

func quote(line string) string {
	if len(line) > tailWidth {
		line = strings.ToValidUTF8(line[:tailWidth], "") + "…"
	}
	return strconv.Quote(line)
}

// printable drops characters that could control a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
