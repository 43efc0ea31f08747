package dockercli

import (
	"encoding/json"
	"time"
)

// probe is the result of a docker ps by one process.
type probe struct {
	At      time.Time
	IDs     []string
	Running []string // ids of the running containers
}

// ending is the end of a command that the agent may run again because of its output.
type ending struct {
	At     time.Time
	Code   int
	Output []byte
}

// remember stores a value for a process.
func (p *Personality) remember(from Caller, kind, key string, value any) {
	if from.Process != "" {
		p.Remember(kind+" "+from.Process+" "+key, []byte(encode(value)))
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

// encode returns the same text for equal values.
func encode(v any) string {
	text, _ := json.Marshal(v) // never fails for these types
	return string(text)
}
