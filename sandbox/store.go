package sandbox

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/trust"
)

// store is a directory on the data volume that all processes with the same sandboxes share. It holds locks, sockets, the
// helper and a record for each container.
type store struct {
	path string
	dir  *fsutil.Dir
	id   string // ID of the volume, which is also a label on its containers.
}

// Directories in the store.
const (
	// Lock files, held while the container of a key is found, created or removed. Several keys may
	// share one.
	locksDir   = "locks"
	runDir     = "run"    // Directories of containers, which mount them and put their helper's socket there.
	recordsDir = "known"  // Records of containers.
	toolsDir   = "tools"  // Directories with the versions of the helper.
	cacheDir   = "memory" // Files with the values of [Manager.StoreCached].
)

// openStore opens the store at path. If it is missing, openStore creates it.
func openStore(path string) (*store, error) {
	dir, _, err := fsutil.MakeNoLink(path, 0o700, fsutil.ProcessActor())
	if err != nil {
		return nil, fmt.Errorf("cannot keep the state of sandboxes: %w", err)
	}
	v := &store{path: path, dir: dir}
	for _, name := range []string{locksDir, runDir, recordsDir, toolsDir, cacheDir} {
		if err := dir.Mkdir(name, 0o700); err != nil {
			dir.Close()
			return nil, fmt.Errorf("cannot keep the state of sandboxes: %w", err)
		}
	}
	if v.id, err = v.volumeID(); err != nil {
		dir.Close()
		return nil, err
	}
	return v, nil
}

// volumeID returns the id of the volume. The first process that needs it makes an id and stores it.
func (v *store) volumeID() (string, error) {
	err := v.dir.Create("volume", []byte(randomHex(8)+"\n"), 0o600)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("cannot name the volume: %w", err)
	}
	data, err := v.dir.ReadFile("volume", 100)
	id := strings.TrimSpace(string(data))
	if err == nil && len(id) != 16 {
		err = errors.New("the file is damaged; remove it if no sandbox of this volume is left")
	}
	if err != nil {
		return "", fmt.Errorf("cannot read %s/volume: %w", v.path, err)
	}
	return id, nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return fmt.Sprintf("%x", b)
}

// Lock waits for the lock of the key to which the labels belong. A caller must hold the lock while it finds, makes, starts or
// removes the key's container, so that two processes don't make two containers. On a file system without locks, Lock only
// warns.
func (m *Manager) Lock(ctx context.Context, labels map[string]string) (unlock func(), err error) {
	key := sha256.Sum256([]byte(labels[LabelTask] + "@" + labels[LabelProfile]))
	name := filepath.Join(locksDir, fmt.Sprintf("%x", key[:1])) // Agents choose the labels, so use at most 256 lock files.
	dir, err := m.store.openSub(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	local := fsutil.IsLocal(m.store.path) // If the file system isn't local, other machines may not see the lock.
	for wait := time.Millisecond; ; wait = min(wait*3/2, 50*time.Millisecond) {
		held, err := (*os.File)(nil), errors.ErrUnsupported
		if local {
			held, err = dir.Lock(func(*os.File) error { return errLocked })
		}
		switch {
		case err == nil:
			return func() { held.Close() }, nil
		case errors.Is(err, errors.ErrUnsupported), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EINVAL):
			m.opts.warn(fmt.Sprintf("%s is on a file system without locks: two processes may make two containers of one task", m.store.path))
			return func() {}, nil
		case !errors.Is(err, errLocked):
			return nil, err
		}
		if !pause.For(ctx, wait) {
			return nil, fmt.Errorf("cannot have the sandbox: another process is finding or making it: %w", context.Cause(ctx))
		}
	}
}

var errLocked = errors.New("another process holds the lock")

// openSub opens a directory of the store, and creates it if it is missing.
func (v *store) openSub(name string) (*fsutil.Dir, error) {
	if err := v.dir.Mkdir(name, 0o700); err != nil {
		return nil, err
	}
	return v.dir.OpenSubdir(name)
}

// containerRecord describes a container, so that a command can find the container's helper without asking the engine. While a
// container is being made, its record is an empty file.
type containerRecord struct {
	ID     string            `json:"id"`
	Labels map[string]string `json:"labels"`
}

// prepareRun makes the directory and an empty record of a container. It must be called before the container is created,
// because the container mounts the directory.
func (v *store) prepareRun(name string) (dir string, err error) {
	if err := v.dir.Create(filepath.Join(recordsDir, name), nil, 0o600); err != nil {
		return "", err
	}
	rel := filepath.Join(runDir, name)
	if err := v.dir.Mkdir(rel, 0o700); err != nil {
		return "", err
	}
	// The container's user creates the socket in this directory, and may be any user. Other users can't reach the directory,
	// because the one above it is private.
	if err := v.dir.Chmod(rel, 0o777); err != nil {
		return "", err
	}
	return filepath.Join(v.path, rel), nil
}

// writeRecord replaces the empty record of a container when the container's id is known.
func (v *store) writeRecord(name string, k containerRecord) error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return v.dir.Replace(filepath.Join(recordsDir, name), data, fsutil.ReplaceOptions{Mode: 0o600})
}

// findByID looks for a container by its full id in the records, without asking the engine.
func (v *store) findByID(id string) (c Container, found bool) {
	entries, _ := v.dir.ReadDir(recordsDir)
	for _, e := range entries {
		var k containerRecord
		data, _ := v.dir.ReadFile(filepath.Join(recordsDir, e.Name()), 64<<10)
		_ = json.Unmarshal(data, &k) // A removed, empty or damaged record gives no ID.
		if k.ID == id && id != "" {
			return Container{ID: id, Name: e.Name(), Labels: k.Labels}, true
		}
	}
	return Container{}, false
}

// removeRecord removes the record and the directory of a container that was removed.
func (v *store) removeRecord(name string) {
	if name != "" && !strings.Contains(name, "/") {
		_ = v.dir.RemoveAll(filepath.Join(runDir, name))
		_ = v.dir.Remove(filepath.Join(recordsDir, name))
	}
}

// sweepRecords removes the records and directories of containers that no longer exist. It keeps the ones of the containers in
// keep, and the ones that were changed after the time before.
func (v *store) sweepRecords(keep []Container, before time.Time) {
	for _, below := range []string{runDir, recordsDir} {
		entries, err := v.dir.ReadDir(below)
		if err != nil {
			return
		}
		for _, e := range entries {
			kept := slices.ContainsFunc(keep, func(c Container) bool { return c.Name == e.Name() })
			if info, err := e.Info(); err == nil && !kept && info.ModTime().Before(before) {
				_ = v.dir.RemoveAll(filepath.Join(below, e.Name()))
			}
		}
	}
}

// helperName is the file name of the helper program.
const helperName = "hinit-sandbox-helper"

// readHelper returns the helper program and its hash. It reads the file each time, because the program is too large to keep
// in memory.
func (m *Manager) readHelper() (data []byte, hash string, err error) {
	data, err = os.ReadFile(m.helper)
	sum := sha256.Sum256(data)
	return data, fmt.Sprintf("%x", sum[:6]), err
}

// FindHelper returns the path of the helper program. If named is "", it searches the directory of this program and then PATH.
// Root uses no helper in PATH that another user can change.
func FindHelper(named string) (string, error) {
	sibling, _ := cmdline.SiblingProgram(helperName)
	inPath, _ := proc.LookPath(helperName, os.Environ())
	if violation, _ := trust.Check(inPath, trust.RootOnly); violation != nil && os.Geteuid() == 0 {
		inPath = ""
	}
	for _, path := range []string{named, sibling, inPath} {
		info, err := os.Stat(path)
		switch {
		case err == nil && info.Mode().IsRegular():
			return path, nil
		case named != "":
			return "", &OptionError{Name: "HINIT_SANDBOX_HELPER", Value: named, Want: "the path of " + helperName}
		}
	}
	return "", fmt.Errorf("%s is neither beside this program nor in PATH", helperName)
}

// installHelper copies the helper to the volume, unless the volume has this version already. It returns the helper's
// directory, which containers mount.
func (v *store) installHelper(data []byte, hash string) (string, error) {
	rel := filepath.Join(toolsDir, hash)
	dir, err := v.openSub(rel)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	if info, err := dir.Lstat(helperName); err != nil || info.Size() != int64(len(data)) || info.Mode().Perm() != 0o755 {
		if err := dir.Replace(helperName, data, fsutil.ReplaceOptions{Mode: 0o755}); err != nil {
			return "", err
		}
	}
	if err := v.dir.Chmod(rel, 0o755); err != nil {
		return "", err
	}
	return filepath.Join(v.path, rel), nil
}

// Limits of the values that StoreCached stores, so that an agent can't fill the disk: age, number and total size. The age is
// long enough for two starts of a container and a snapshot, for which an agent may wait.
const (
	maxCacheAge     = 5 * time.Minute
	maxCacheEntries = 2048
	maxCacheBytes   = 32 << 20
)

// cachePath returns the path of the file for the value that [Manager.StoreCached] stores under a key.
func cachePath(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(cacheDir, hex.EncodeToString(sum[:12]))
}

// LoadCached returns a value that [Manager.StoreCached] has stored in the last few minutes, in this process or in another one
// with the same sandboxes.
func (m *Manager) LoadCached(key string) (value []byte, ok bool) {
	file := cachePath(key)
	info, err := m.store.dir.Lstat(file)
	if err != nil || time.Since(info.ModTime()) > maxCacheAge {
		return nil, false
	}
	value, err = m.store.dir.ReadFile(file, maxCacheBytes)
	return value, err == nil
}

// StoreCached stores a value for a few minutes, for all processes with the same sandboxes. A nil value removes the stored one. If
// the new value can't be written, the old one is removed, so that [Manager.LoadCached] never returns an outdated value.
func (m *Manager) StoreCached(key string, value []byte) {
	file := cachePath(key)
	if value == nil || m.store.dir.Replace(file, value, fsutil.ReplaceOptions{Mode: 0o600, NoSync: true}) != nil {
		_ = m.store.dir.Remove(file) // Ignore the error: the file may be missing.
	}
	m.store.sweepCache()
}

// sweepCache removes the values that are too old, and the oldest ones beyond the limits.
func (v *store) sweepCache() {
	entries, _ := v.dir.ReadDir(cacheDir) // Ignore the error: the files then stay until the next call.
	files := lo.FilterMap(entries, func(e fs.DirEntry, _ int) (fs.FileInfo, bool) {
		info, err := e.Info()
		return info, err == nil
	})
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	size := int64(0)
	for i, f := range files {
		if size += f.Size(); i >= maxCacheEntries || size > maxCacheBytes || time.Since(f.ModTime()) > maxCacheAge {
			// Ignore the error: another process may have removed the file.
			_ = v.dir.Remove(filepath.Join(cacheDir, f.Name()))
		}
	}
}
