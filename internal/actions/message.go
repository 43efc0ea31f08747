package actions

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/redact"
	"hinit/internal/version"
)

// Message describes an event to an action, as JSON.
type Message struct {
	ID        string    `json:"id"`      // the same in each attempt
	Event     string    `json:"event"`   // crash-loop, parked, unhealthy, ready, failed or oom
	Service   string    `json:"service"` // gateway-coder, dashboard
	Profile   string    `json:"profile"` // "" when it belongs to no profile
	Kind      string    `json:"kind"`    // gateway or service
	State     string    `json:"state"`
	Reason    string    `json:"reason"` // reason of the state, for people
	Cause     string    `json:"cause"`  // cause of its last end, "" before the first
	Exit      *Exit     `json:"exit"`   // null before the first end
	Tail      []string  `json:"tail"`   // last log lines before its last end, without secrets of known shapes
	At        time.Time `json:"at"`     // when the event was seen
	Container string    `json:"container"`
	Version   string    `json:"hinit"`
}

// Exit says how a service ended.
type Exit struct {
	Code   *int      `json:"code"`   // null when a signal ended it or it never ran
	Signal *int      `json:"signal"` // number of the signal that ended it, null when none did
	At     time.Time `json:"at"`
	Error  string    `json:"error"` // reason for which it could not be started, "" when it was
}

// message returns the JSON text of an event, on one line.
func message(h Happening, host string, at time.Time) []byte {
	s := &h.Service
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	m := Message{
		ID: hex.EncodeToString(id), Event: h.Event, Service: s.Name, Profile: s.Profile, Kind: s.Kind, State: s.State, Reason: redact.Text(s.Reason),
		Tail: []string{}, At: at.UTC().Truncate(time.Millisecond), Container: host, Version: version.Get().Version,
	}
	if x := s.LastExit; x != nil {
		m.Cause, m.Exit = x.Cause, &Exit{Code: x.Code, Signal: x.Signal, At: x.At, Error: x.Error}
		m.Tail = shownTail(x)
	}
	return m.text()
}

func (m *Message) text() []byte {
	body, err := json.Marshal(m)
	if err != nil {
		panic(err) // a struct of texts and numbers
	}
	return body
}

// shownTail returns the last lines before an end, without secrets of known shapes.
func shownTail(x *client.Exit) []string {
	if len(x.Tail) == 0 {
		return []string{}
	}
	return strings.Split(redact.Text(strings.Join(x.Tail, "\n")), "\n")
}
