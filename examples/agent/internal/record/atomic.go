// Package record reads and writes the small files by which a gateway and its supervisor talk (contract, section 6). They are the
// state file, the pid file and the lock, the markers of a planned stop and of a takeover, and the lifecycle ledger.
//
// A reader never sees half a file. Keys in the state file that the package doesn't know are kept. It owns no goroutines and holds
// no state; every call goes to the disk.
package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Replace writes data to path so that readers see either the old or the new content. It writes a temporary file in the same
// directory, syncs it, renames it, and syncs the directory. It follows a symbolic link, and replaces the file that the link leads
// to. An existing file keeps its mode; a new one gets mode. tempPattern is the pattern of the temporary name, as os.CreateTemp
// takes it.
func Replace(path string, data []byte, mode fs.FileMode, tempPattern string) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if err := replace(path, data, mode, tempPattern); err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	return nil
}

func replace(path string, data []byte, mode fs.FileMode, tempPattern string) (err error) {
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
	// The new content is now in place, so a later failure must not remove anything.
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

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Timestamp formats a time as the files have it: ISO 8601 in UTC with microseconds and a numeric offset.
func Timestamp(t time.Time) string {
	return t.UTC().Format("2006-01-02T15:04:05.000000+00:00")
}
