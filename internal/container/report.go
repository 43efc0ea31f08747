package container

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hinit/internal/container/units"
	"hinit/internal/control/show"
	"hinit/internal/probe"
	"hinit/internal/runs"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// report follows the history. It logs what matters to people, hands each record to the keeper, and gives memory back when all is
// reported.
func (c *container) report(ctx context.Context) {
	history := c.loop.History()
	var memory tuning.Releaser
	quiet := time.NewTimer(tuning.RestAfter)
	defer quiet.Stop()
	rested := false
	stir := func() {
		rested = false
		quiet.Reset(tuning.RestAfter)
	}
	for {
		news := history.News()
		cursor, some := c.reportSome(history)
		if some {
			stir()
			continue
		}
		select {
		case <-news:
		case <-c.used:
			stir()
		case <-quiet.C: // the boot, a burst or a request is over
			memory.Release()
			if !rested {
				rested = true
				quiet.Reset(tuning.RestAgain)
			}
		case <-c.loop.Ended():
			if history.Last() == cursor {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// use notes that something was done that is no event of the history, so that memory is given back after it.
func (c *container) use() {
	select {
	case c.used <- struct{}{}:
	default: // it is noted already
	}
}

// reportSome reports what is new and returns how far it has come. The next generation goes on from there.
func (c *container) reportSome(history *supervisor.Ring) (cursor uint64, some bool) {
	c.reporting.Lock()
	defer c.reporting.Unlock()
	records, lost := history.Since(c.reported)
	if len(records) > 0 && c.loop.Snapshot().Stopping {
		c.keeper.Stop()
	}
	c.reported += lost
	known := func(service string) bool { return c.loop.Snapshot().Find(service) != nil }
	if lost > 0 {
		c.Say("%d events are not shown here", lost)
		c.logs.Sweep(known) // services may have gone unseen
		c.keeper.Catchup()
	}
	for _, r := range records {
		c.reported = r.Seq
		if line := reportLine(r); line != "" {
			c.Say("%s", line)
		}
		c.keeper.Observe(r)
		c.slots().Observe(r)
		if r.Dropped {
			if !known(r.Service) {
				c.health.Drop(r.Service)
			}
			c.logs.Drop(r.Service, known)
		}
	}
	return c.reported, len(records) > 0
}

// reportLine is what the container log says of a record, "" for what would only be noise.
func reportLine(r supervisor.Record) string {
	switch {
	case r.Service == "":
		return r.Reason
	case strings.HasPrefix(r.Service, units.HookPrefix):
		return "" // the boot tells about it
	case runs.Owns(r.Service): // there are many, and whoever asked for one is told
		if r.Exit != nil && r.Exit.Cause == supervisor.CauseOOM {
			return fmt.Sprintf("%s: %s", r.Service, exitPhrase(r.Exit))
		}
		return ""
	case r.Service == units.CmdName:
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
	case r.From == r.To && probe.Remarked(r.Reason):
		return r.Service + ": " + r.Reason
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
	if x.Cause == supervisor.CauseHealth {
		how = supervisor.ReasonUnhealthy + " (" + x.Error + "), " + how
	}
	if x.Signal != 0 {
		how = "ended by " + show.Signal(x.Signal)
	}
	return fmt.Sprintf("%s after %s (%s)", how, show.Duration(x.Uptime), x.Cause)
}
