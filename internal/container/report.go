package container

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hinit/internal/control/show"
	"hinit/supervisor"
)

// report follows the history: it writes a line for people about what matters, hands each record to the keeper, and gives
// memory back when there is nothing more to report.
func (c *container) report(ctx context.Context) {
	history := c.loop.History()
	var rester rester
	quiet := time.NewTimer(restAfter)
	defer quiet.Stop()
	for {
		news := history.News()
		cursor, some := c.reportSome(history)
		if some {
			quiet.Reset(restAfter)
			continue
		}
		select {
		case <-news:
		case <-quiet.C: // the boot or a burst is over
			rester.rest()
		case <-c.loop.Ended():
			if history.Last() == cursor {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// reportSome deals with what is new and returns how far the report has come. Another image goes on from there: nothing is
// reported while the images change.
func (c *container) reportSome(history *supervisor.Ring) (cursor uint64, some bool) {
	c.images.reporting.Lock()
	defer c.images.reporting.Unlock()
	records, lost := history.Since(c.images.reported)
	if len(records) > 0 && c.loop.Snapshot().Stopping {
		c.keeper.stop()
	}
	c.images.reported += lost
	known := func(service string) bool { return c.loop.Snapshot().Find(service) != nil }
	if lost > 0 {
		c.say("[hinit] %d events are not shown here", lost)
		c.logs.sweep(known) // services may have gone unseen
		c.keeper.resume()
	}
	for _, r := range records {
		c.images.reported = r.Seq
		if line := reportLine(r); line != "" {
			c.say("[hinit] %s", line)
		}
		c.keeper.observe(r)
		if scanner := c.s6.Load(); scanner != nil {
			scanner.Observe(r)
		}
		if r.Dropped {
			c.logs.drop(r.Service, known)
		}
	}
	return c.images.reported, len(records) > 0
}

// reportLine is what the container log says of a record, "" for what would only be noise.
func reportLine(r supervisor.Record) string {
	switch {
	case r.Service == "":
		return r.Reason
	case strings.HasPrefix(r.Service, hookPrefix):
		return "" // the boot tells about it
	case r.Service == cmdName:
		if r.Exit != nil && r.Exit.Cause == supervisor.CauseSpawn {
			return "cmd: " + r.Reason
		}
		return ""
	case r.Exit != nil && strings.HasSuffix(r.Reason, supervisor.ReasonTaken): // its exit was said before
		return fmt.Sprintf("%s: no crash: it %s", r.Service, r.Reason)
	case r.Exit != nil:
		return fmt.Sprintf("%s: %s", r.Service, exitPhrase(r.Exit))
	case r.From == r.To && strings.HasPrefix(r.Reason, supervisor.ReasonLoop):
		return fmt.Sprintf("%s: %s; see: hinit status %s", r.Service, r.Reason, r.Service)
	case r.From == r.To:
		return ""
	}
	switch r.To {
	case supervisor.Up:
		return fmt.Sprintf("%s: up (pid %d)", r.Service, r.PID)
	case supervisor.Killing, supervisor.Parked, supervisor.Failed:
		return fmt.Sprintf("%s: %s: %s", r.Service, r.To, r.Reason)
	case supervisor.Stopping:
		if r.Reason == supervisor.ReasonShutdown {
			return "" // said once, for the container
		}
		return fmt.Sprintf("%s: stopping: %s", r.Service, r.Reason)
	case supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Finishing, supervisor.Backoff:
	}
	return ""
}

// exitPhrase tells how a run ended, for people: "exited with code 1 after 3.2s (crash)".
func exitPhrase(x *supervisor.Exit) string {
	if x.Cause == supervisor.CauseSpawn {
		return x.Error
	}
	how := fmt.Sprintf("exited with code %d", x.Code)
	if x.Signal != 0 {
		how = "ended by " + show.Signal(x.Signal)
	}
	return fmt.Sprintf("%s after %s (%s)", how, show.Duration(x.Uptime), x.Cause)
}
