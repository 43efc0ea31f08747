package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"hinit/internal/fsutil"
)

// These limits keep an agent from filling the disk: age, number and bytes of the remembered values. After rememberedCheck new
// bytes the limits are checked. The age allows for an agent that waits for two starts of a container and a snapshot.
const (
	rememberedFor   = 5 * time.Minute
	rememberedMost  = 2048
	rememberedBytes = 32 << 20
	rememberedCheck = 8 << 20
)

func memoryFile(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(memoryDir, hex.EncodeToString(sum[:12]))
}

// Recall returns a value that this process, or another one with the same sandboxes, has remembered in the last minutes.
func (m *Manager) Recall(key string) (value []byte, ok bool) {
	file := memoryFile(key)
	info, err := m.store.dir.Lstat(file)
	if err != nil || time.Since(info.ModTime()) > rememberedFor {
		return nil, false
	}
	value, err = m.store.dir.ReadFile(file, rememberedCheck)
	return value, err == nil
}

// Remember stores a value for a few minutes; nil removes it. It also removes a value that can't be replaced.
func (m *Manager) Remember(key string, value []byte) {
	file := memoryFile(key)
	if value == nil || m.store.dir.Replace(file, value, fsutil.ReplaceOptions{Mode: 0o600, Volatile: true}) != nil {
		_ = m.store.dir.Remove(file) // it may not exist
	}
	if before := m.remembered.Add(int64(len(value) + 4<<10)); before > rememberedCheck {
		m.remembered.Store(0)
		m.store.sweepMemory()
	}
}

// sweepMemory removes values that are too old. If there are too many, it also removes the oldest ones.
func (v *store) sweepMemory() {
	entries, _ := v.dir.ReadDir(memoryDir) // files that can't be listed stay
	var files []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	size := int64(0)
	for i, f := range files {
		if size += f.Size(); i >= rememberedMost || size > rememberedBytes || time.Since(f.ModTime()) > rememberedFor {
			_ = v.dir.Remove(filepath.Join(memoryDir, f.Name())) // another process may have been faster
		}
	}
}
