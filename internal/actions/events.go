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

// Marks are the conditions in which each service was last seen, by service and event. A condition's mark distinguishes it from an
// earlier condition of the same kind.
type Marks map[string]map[string]string

// Happening is an event of a service, with the service's state at that time.
type Happening struct {
	Event   string
	Service client.Service
}

// bootTime limits how long after the start of hinit the first sight of a ready service counts as the event ready.
const bootTime = time.Minute

// was begins the mark of a process that was unhealthy and is not any more.
const was = "was "

// Apply updates the marks, and returns the events in the order of the services. changed reports whether a mark has changed. first
// says that the marks are from an earlier run of hinit. A failure then counts as new, and an old end does not count. A ready service
// counts only shortly after the boot.
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
				now[event] = was + strings.TrimPrefix(old, was) // so that the end of the condition is no event
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

// conditions returns the events whose conditions a service fulfils, each with its mark.
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
