package dockercli

import (
	"encoding/json"
	"time"
)

// listing records the containers that a process saw with docker ps.
type listing struct {
	At      time.Time
	IDs     []string
	Running []string // the ids of the running containers
}

// commandEnd records the result of a failed command whose output may make the agent run the command again.
type commandEnd struct {
	At     time.Time
	Code   int
	Output []byte
}

// remember stores a value for a few minutes. Only commands of the caller's process can recall it.
func (p *Emulator) remember(from Caller, kind, key string, value any) {
	if from.Process != "" {
		p.Remember(kind+" "+from.Process+" "+key, []byte(toJSON(value)))
	}
}

// recall reads a value that remember stored for the caller's process. It reports whether such a value exists.
func (p *Emulator) recall(from Caller, kind, key string, value any) bool {
	if from.Process == "" {
		return false
	}
	text, ok := p.Recall(kind + " " + from.Process + " " + key)
	return ok && json.Unmarshal(text, value) == nil
}

func (p *Emulator) forget(from Caller, kind, key string) {
	p.Remember(kind+" "+from.Process+" "+key, nil)
}

// toJSON returns a value as JSON. Equal values have equal texts, so a text can be part of a key.
func toJSON(v any) string {
	text, _ := json.Marshal(v) // Marshal never fails for these types
	return string(text)
}
