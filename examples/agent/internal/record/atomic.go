// Package record reads and writes the small files with which a gateway and its supervisor communicate. These are the state
// file, the pid file and the lock, the markers of a planned stop and of a takeover, and the lifecycle ledger. They have the
// same form as in the Hermes agent.
//
// A reader never sees an incomplete file. The package keeps keys in the state file that it doesn't know. It owns no
// goroutines and holds no state: every call reads or writes the disk.
package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ReplaceFile writes data to path, so that readers see either the old or the new content. It writes a temporary file in the same
// directory, syncs it, renames it, and syncs the directory. If path is a symbolic link, it replaces the link's target. An
// existing file keeps its mode; a new one gets mode. tempPattern is the pattern of the temporary name for os.CreateTemp.
func ReplaceFile(path string, data []byte, mode fs.FileMode, tempPattern string) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if err := replaceTarget(path, data, mode, tempPattern); err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	return nil
}

func replaceTarget(path string, data []byte, mode fs.FileMode, tempPattern string) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), tempPattern)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, temp.Close(), os.Remove(temp.Name()))
		}
	}()
	if _, err := temp.Write(data); err != nil {
		return err
	}
	if err := temp.Chmod(mode); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	// From here on the new content is in place, so a failure must not remove anything.
	_ = temp.Close()
	syncDir(filepath.Dir(path))
	return nil
}

func syncDir(dir string) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	_ = d.Sync()
	_ = d.Close()
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Timestamp formats a time for these files: ISO 8601 in UTC, with microseconds and a numeric offset.
func Timestamp(t time.Time) string {
	return t.UTC().Format("2006-01-02T15:04:05.000000+00:00")
}
