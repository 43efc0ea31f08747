package actions

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/redact"
	"hinit/internal/version"
)

// SeenConditions records the last known conditions of each service, such as "unhealthy", so that each condition is reported
// only once. It maps a service and an event to a mark. The mark identifies one occurrence of the condition, for example by the
// number of the run; a different mark means a new occurrence.
type SeenConditions map[string]map[string]string

// ServiceEvent is an event of a service, with the state of the service at that time.
type ServiceEvent struct {
	Event   string
	Service client.Service
}

// readyEventWindow is the time after hinit's start in which a service that is already ready causes the event ready. Later, only a
// service that becomes ready causes it.
const readyEventWindow = time.Minute

// tailTimeout is how long an event waits for the last log lines of a service that has exited. The status reports an exit before
// all output is read, so the lines come later.
const tailTimeout = 10 * time.Second

// endedPrefix is the prefix of the mark of a condition that is over: the process has ended or recovered.
const endedPrefix = "was "

// Apply updates the marks by a status change. It returns the new events in the order of the services; changed reports whether a
// mark has changed.
//
// first is true for the first status of another hinit, for which no marks exist. Then a failure is an event, but the end of an
// earlier run is no event. A ready service is an event only shortly after the boot. held are the services whose events wait for
// the last log lines before their exit.
func (m SeenConditions) Apply(c client.StatusChange, first bool) (out []ServiceEvent, held []string, changed bool) {
	for _, s := range c.Services {
		if s.Expected || s.Name == config.ActionsName {
			continue
		}
		if x := s.LastExit; x != nil && x.TailPending && time.Since(x.EndedAt) <= tailTimeout {
			held = append(held, s.Name)
			continue
		}
		known := m[s.Name]
		now := currentConditions(&s)
		for _, event := range config.ActionEvents {
			mark, holds := now[event]
			old, held := known[event]
			switch {
			case !holds && event == config.EventUnhealthy && held:
				now[event] = endedPrefix + strings.TrimPrefix(old, endedPrefix) // a recovery causes no event
			case !holds, held && mark == old:
			case strings.HasPrefix(mark, endedPrefix) && endedPrefix+old == mark:
			case first && event == config.EventOOM, first && event == config.EventUnhealthy && strings.HasPrefix(mark, endedPrefix):
			case first && event == config.EventReady && c.Init.UptimeSeconds > readyEventWindow.Seconds():
			default:
				out = append(out, ServiceEvent{event, s})
			}
		}
		if !maps.Equal(known, now) {
			m[s.Name], changed = now, true
		}
	}
	if c.IsComplete {
		for name := range m {
			if !slices.ContainsFunc(c.Services, func(s client.Service) bool { return s.Name == name }) {
				delete(m, name)
				changed = true
			}
		}
	}
	return out, held, changed
}

// currentConditions returns the events whose conditions a service meets now. Each event has its mark, see [SeenConditions].
func currentConditions(s *client.Service) map[string]string {
	marks := map[string]string{}
	end, pid := "", s.PID
	if x := s.LastExit; x != nil {
		end = strconv.FormatInt(x.EndedAt.UnixMilli(), 10)
		pid = cmp.Or(pid, x.PID)
		if x.Cause == "oom" {
			marks[config.EventOOM] = end
		}
		if x.Cause == "health" {
			marks[config.EventUnhealthy] = endedPrefix + strconv.Itoa(x.PID)
		}
	}
	if slices.ContainsFunc(s.Checks, func(c client.Check) bool {
		return c.Failed && c.Kind != config.CheckReady && c.State != client.CheckOnHold
	}) {
		marks[config.EventUnhealthy] = strconv.Itoa(pid)
	}
	run := fmt.Sprintf("%d/%s", s.RunNumber, end)
	switch {
	case s.State == client.StateParked:
		marks[config.EventParked] = run
	case s.State == client.StateFailed:
		marks[config.EventFailed] = run
	case s.State == client.StateUp && s.Ready:
		marks[config.EventReady] = strconv.FormatUint(s.RunNumber, 10)
	}
	if s.CrashLoop {
		marks[config.EventCrashLoop] = "on"
	}
	return marks
}

// Message is the JSON document about an event for an action.
type Message struct {
	ID        string    `json:"id"`      // id of the event; the same for each attempt to deliver it
	Event     string    `json:"event"`   // crash-loop, parked, unhealthy, ready, failed, oom or stale
	Service   string    `json:"service"` // name of the service, such as gateway-coder or dashboard
	Profile   string    `json:"profile"` // "" if the service belongs to no profile
	Kind      string    `json:"kind"`    // kind of the service: gateway or service
	State     string    `json:"state"`
	Reason    string    `json:"reason"` // reason of the state, for people
	Cause     string    `json:"cause"`  // cause of the service's last exit; "" before the first
	Exit      *Exit     `json:"exit"`   // exit of the last run; null before the first exit
	Tail      []string  `json:"tail"`   // last log lines before the last exit; secrets of known shapes are hidden
	At        time.Time `json:"at"`     // when hinit-actions noticed the event
	Container string    `json:"container"`
	Version   string    `json:"hinit"`
}

// Exit describes how the last run of a service ended.
type Exit struct {
	Code   *int      `json:"code"`   // exit code; null if a signal ended the service, or if it never ran
	Signal *int      `json:"signal"` // signal that ended the service; null without a signal
	At     time.Time `json:"at"`
	Error  string    `json:"error"` // why the service could not be started; "" if it was
}

// encodeMessage returns the [Message] about an event, on one line. host is the name of the container.
func encodeMessage(h ServiceEvent, host string, at time.Time) []byte {
	s := &h.Service
	id := make([]byte, 8)
	_, _ = rand.Read(id) // rand.Read never fails
	m := Message{
		ID: hex.EncodeToString(id), Event: h.Event, Service: s.Name, Profile: s.Profile, Kind: s.Kind, State: s.State, Reason: redact.HideText(s.Reason),
		Tail: []string{}, At: at.UTC().Truncate(time.Millisecond), Container: host, Version: version.Get().Version,
	}
	if x := s.LastExit; x != nil {
		m.Cause, m.Exit = x.Cause, &Exit{Code: x.Code, Signal: x.Signal, At: x.EndedAt, Error: redact.HideText(x.Error)}
		if len(x.Tail) > 0 {
			m.Tail = strings.Split(redact.HideText(strings.Join(x.Tail, "\n")), "\n")
		}
	}
	body, _ := json.Marshal(m) // texts, numbers and times of this era can always be encoded
	return body
}

// actionsOf returns the actions for an event of a service. The configuration can set actions for the service, its profile, all
// gateways and all services. The first of these with actions for the event counts.
func actionsOf(c *config.Config, service, profile, event string) []config.Action {
	if s, known := c.Services[service]; known {
		if list, own := s.Actions[event]; own {
			return list
		}
	}
	if p, known := c.Profiles.Overrides[profile]; known && profile != "" {
		if list, own := p.Actions[event]; own {
			return list
		}
	}
	if list, own := c.Agent.Actions[event]; own && profile != "" {
		return list
	}
	return c.Actions[event]
}
