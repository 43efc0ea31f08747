package dockercli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"hinit/sandbox/mux"
)

// Store keeps the memory of the personality between two calls of one process. That is the output of docker ps, and the ends of
// commands whose output looks like a lost container. Its files belong to this user, in a directory that only this user can write.
type Store struct {
	dir string
	put atomic.Int64 // how many bytes, since the last sweep
	n   atomic.Int64 // names a file that is being written
}

// Limits of a Store, in values and in bytes, and how many bytes more until it checks them: an agent could fill the memory
// otherwise.
const (
	storeMost  = 2048
	storeBytes = 32 << 20
	sweepBytes = 8 << 20
)

// NewStore returns a Store in a directory, which is made if it is missing. It must belong to this user, with no access for others.
func NewStore(dir string) (*Store, error) {
	if err := mux.PrivateDir(dir); err != nil {
		return nil, fmt.Errorf("cannot remember what docker commands have shown: %w", err)
	}
	s := &Store{dir: dir}
	s.sweep()
	return s, nil
}

func (s *Store) file(key string) string { return filepath.Join(s.dir, sum([]string{key})) }

// Get returns a value that was put in the last minutes.
func (s *Store) Get(key string) (value []byte, ok bool) {
	file := s.file(key)
	info, err := os.Stat(file)
	if err != nil || time.Since(info.ModTime()) > keepFor {
		return nil, false
	}
	value, err = os.ReadFile(file)
	return value, err == nil
}

// Put keeps a value for a few minutes; nil forgets it. The file is replaced whole. A value that can't be kept is forgotten, and
// the docker command's own behaviour applies.
func (s *Store) Put(key string, value []byte) {
	file := s.file(key)
	if value == nil {
		_ = os.Remove(file) // it may not be there
		return
	}
	next := fmt.Sprintf("%s.%d.%d", file, os.Getpid(), s.n.Add(1))
	if os.WriteFile(next, value, 0o600) != nil || os.Rename(next, file) != nil {
		_ = os.Remove(next) // a part of it, at most
	}
	if s.put.Add(int64(len(value)+4<<10)) > sweepBytes {
		s.put.Store(0)
		s.sweep()
	}
}

// sweep removes what is too old to be asked for, and the oldest of what is too much.
func (s *Store) sweep() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	var files []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	size := int64(0)
	for i, f := range files {
		if size += f.Size(); i >= storeMost || size > storeBytes || time.Since(f.ModTime()) > keepFor {
			_ = os.Remove(filepath.Join(s.dir, f.Name())) // another process may have been faster
		}
	}
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
