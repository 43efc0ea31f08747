package actions

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/config"
)

// Marks are the conditions that services were last seen in, by service and event. A condition's mark tells it from an earlier one of the
// same kind.
type Marks map[string]map[string]string

// Happening is an event of a service, with the service as it is then.
type Happening struct {
	Event   string
	Service client.Service
}

// bootTime is how long after the start of hinit a service that is ready has become ready just now.
const bootTime = time.Minute

// was stands before the mark of a process that was unhealthy and is not any more.
const was = "was "

// Apply brings the marks up to date and returns what has happened, in the order of the services, and whether a mark has changed.
// first says that this run of hinit is not known yet. A failure then counts as new and an old end does not count. A service that
// is ready counts only shortly after the boot.
func (m Marks) Apply(c client.StatusChange, first bool) (out []Happening, changed bool) {
	for _, s := range c.Services {
		if s.Expected || s.Name == config.ActionsName {
			continue
		}
		known := m[s.Name]
		now := conditions(&s)
		for _, event := range config.ActionEvents {
			mark, holds := now[event]
			old, held := known[event]
			switch {
			case !holds && event == config.EventUnhealthy && held:
				now[event] = was + strings.TrimPrefix(old, was) // so that its end is not news
			case !holds, held && mark == old:
			case strings.HasPrefix(mark, was) && was+old == mark:
			case first && event == config.EventOOM, first && event == config.EventUnhealthy && strings.HasPrefix(mark, was):
			case first && event == config.EventReady && c.Init.UptimeSeconds > bootTime.Seconds():
			default:
				out = append(out, Happening{event, s})
			}
		}
		if !maps.Equal(known, now) {
			m[s.Name], changed = now, true
		}
	}
	if c.Whole {
		for name := range m {
			if !slices.ContainsFunc(c.Services, func(s client.Service) bool { return s.Name == name }) {
				delete(m, name)
				changed = true
			}
		}
	}
	return out, changed
}

// conditions returns the events that a service is in, each with its mark.
func conditions(s *client.Service) map[string]string {
	marks := map[string]string{}
	end, pid := "", s.PID
	if x := s.LastExit; x != nil {
		end = strconv.FormatInt(x.At.UnixMilli(), 10)
		if pid == 0 {
			pid = x.PID
		}
		if x.Cause == "oom" {
			marks[config.EventOOM] = end
		}
		if x.Cause == "health" {
			marks[config.EventUnhealthy] = was + strconv.Itoa(x.PID)
		}
	}
	if slices.ContainsFunc(s.Checks, func(c client.Check) bool {
		return c.Failed && c.Kind != config.CheckReady && c.State != client.CheckHeld
	}) {
		marks[config.EventUnhealthy] = strconv.Itoa(pid)
	}
	run := fmt.Sprintf("%d/%s", s.Run, end)
	switch {
	case s.State == client.StateParked:
		marks[config.EventParked] = run
	case s.State == client.StateFailed:
		marks[config.EventFailed] = run
	case s.State == client.StateUp && s.Ready:
		marks[config.EventReady] = strconv.FormatUint(s.Run, 10)
	}
	if s.CrashLoop {
		marks[config.EventCrashLoop] = "on"
	}
	return marks
}
