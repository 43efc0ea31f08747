package dockercli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// keepFor is how long a Store keeps what it was told: an agent that recovers may wait for two starts of a container and a snapshot.
const keepFor = 5 * time.Minute

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
		p.Store.Put(kind+" "+from.Process+" "+key, []byte(encode(value)))
	}
}

// recall reads what was kept for a process.
func (p *Personality) recall(from Caller, kind, key string, value any) bool {
	if from.Process == "" {
		return false
	}
	text, ok := p.Store.Get(kind + " " + from.Process + " " + key)
	return ok && json.Unmarshal(text, value) == nil
}

func (p *Personality) forget(from Caller, kind, key string) {
	p.Store.Put(kind+" "+from.Process+" "+key, nil)
}

// labelKey is the same for the same labels.
func labelKey(labels map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, name, labels[name])
	}
	return sum(words)
}

func sum(words []string) string {
	h := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(h[:12])
}

func encode(v any) string {
	text, _ := json.Marshal(v) // of our own types: it can't fail
	return string(text)
}
