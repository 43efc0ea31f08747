package dockercli

import (
	"encoding/json"
	"time"
)

// probe is what a docker ps has shown to one process.
type probe struct {
	At      time.Time
	IDs     []string
	Running []string // of these
}

// ending is how a command ended that the agent may run again because of its output.
type ending struct {
	At     time.Time
	Code   int
	Output []byte
}

// remember keeps a value for a process.
func (p *Personality) remember(from Caller, kind, key string, value any) {
	if from.Process != "" {
		p.Remember(kind+" "+from.Process+" "+key, []byte(encode(value)))
	}
}

// recall reads what was kept for a process.
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

// encode is the same for the same value.
func encode(v any) string {
	text, _ := json.Marshal(v) // of our own types: it can't fail
	return string(text)
}
