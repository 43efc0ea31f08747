package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
)

// Limits for the age, number and total size of the values of Remember, so that an agent can't fill the disk. The number and size
// are checked after every rememberedCheckBytes of new values. The maximum age is long enough for an agent that waits for two
// starts of a container and a snapshot.
const (
	rememberedAge        = 5 * time.Minute
	maxRemembered        = 2048
	maxRememberedBytes   = 32 << 20
	rememberedCheckBytes = 8 << 20
)

func rememberedFile(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(memoryDir, hex.EncodeToString(sum[:12]))
}

// Recall returns a value that Remember has stored in the last few minutes, in this process or in another process with the
// same sandboxes.
func (m *Manager) Recall(key string) (value []byte, ok bool) {
	file := rememberedFile(key)
	info, err := m.store.dir.Lstat(file)
	if err != nil || time.Since(info.ModTime()) > rememberedAge {
		return nil, false
	}
	value, err = m.store.dir.ReadFile(file, rememberedCheckBytes)
	return value, err == nil
}

// Remember stores a value for a few minutes, for all processes with the same sandboxes. A nil value removes the stored
// value. If the value can't be written, the old one is removed.
func (m *Manager) Remember(key string, value []byte) {
	file := rememberedFile(key)
	if value == nil || m.store.dir.Replace(file, value, fsutil.ReplaceOptions{Mode: 0o600, Volatile: true}) != nil {
		_ = m.store.dir.Remove(file) // the file may not exist
	}
	if before := m.newBytes.Add(int64(len(value) + 4<<10)); before > rememberedCheckBytes {
		m.newBytes.Store(0)
		m.store.sweepMemory()
	}
}

// sweepMemory removes the values that are too old, and the oldest ones beyond the limits.
func (v *store) sweepMemory() {
	entries, _ := v.dir.ReadDir(memoryDir) // if the directory can't be read, the files stay
	files := lo.FilterMap(entries, func(e fs.DirEntry, _ int) (fs.FileInfo, bool) {
		info, err := e.Info()
		return info, err == nil
	})
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	size := int64(0)
	for i, f := range files {
		if size += f.Size(); i >= maxRemembered || size > maxRememberedBytes || time.Since(f.ModTime()) > rememberedAge {
			_ = v.dir.Remove(filepath.Join(memoryDir, f.Name())) // another process may already have removed it
		}
	}
}
