package dockercli

import (
	"encoding/json"
	"time"
)

// listing is the result of a docker ps by one process.
type listing struct {
	At      time.Time
	IDs     []string
	Running []string // ids of the running containers
}

// commandEnd is the end of a command that the agent may run again because of its output.
type commandEnd struct {
	At     time.Time
	Code   int
	Output []byte
}

// remember stores a value for a process.
func (p *Personality) remember(from Caller, kind, key string, value any) {
	if from.Process != "" {
		p.Remember(kind+" "+from.Process+" "+key, []byte(toJSON(value)))
	}
}

// recall reads a stored value of a process, and reports whether there is one.
func (p *Personality) recall(from Caller, kind, key string, value any) bool {
	if from.Process == "" {
		return false
	}
	text, ok := p.Recall(kind + " " + from.Process + " " + key)
	return ok && json.Unmarshal(text, value) == nil
}

func (p *Personality) forget(from Caller, kind, key string) {
	p.Remember(kind+" "+from.Process+" "+key, nil)
}

// toJSON returns a value as JSON. Equal values have the same text, so the text can be a part of a key.
func toJSON(v any) string {
	text, _ := json.Marshal(v) // never fails for these types
	return string(text)
}
