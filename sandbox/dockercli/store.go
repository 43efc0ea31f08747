package dockercli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Store keeps what the personality remembers between two calls of one process: what it saw in docker ps, and how a command ended whose
// output looks as if the container were gone.
type Store interface {
	Get(key string) (value []byte, ok bool)
	// Put keeps a value for a few minutes; nil forgets it.
	Put(key string, value []byte)
}

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

// memoryStore is for a process that answers many calls.
type memoryStore struct {
	mu     sync.Mutex
	values map[string]memory
	size   int // of all values, in bytes
}

type memory struct {
	value []byte
	at    time.Time
}

// What a memoryStore keeps at most, in values and in bytes: an agent could otherwise fill the memory of whoever answers it.
const (
	memoryMost  = 2048
	memoryBytes = 32 << 20
)

// NewMemoryStore returns a Store for a process that answers many calls.
func NewMemoryStore() Store {
	return &memoryStore{values: map[string]memory{}}
}

func (s *memoryStore) Get(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.values[key]
	return m.value, ok && time.Since(m.at) < keepFor
}

func (s *memoryStore) Put(key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(key)
	if value == nil {
		return
	}
	s.values[key] = memory{value, time.Now()}
	s.size += len(value)
	for len(s.values) > memoryMost || s.size > memoryBytes {
		oldest := key
		for k, m := range s.values {
			if m.at.Before(s.values[oldest].at) {
				oldest = k
			}
		}
		s.drop(oldest)
	}
}

func (s *memoryStore) drop(key string) {
	s.size -= len(s.values[key].value)
	delete(s.values, key)
}
