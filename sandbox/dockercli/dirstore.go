package dockercli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// dirStore is for processes that answer one call each: files of this user, in a directory that nobody else can write.
type dirStore struct{ dir string }

// NewDirStore returns a Store in a directory, which is made if it is missing. It must belong to this user, with no access for others.
func NewDirStore(dir string) (Store, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("cannot make the directory of what is remembered: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, fmt.Errorf("cannot look at %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		return nil, fmt.Errorf("cannot use %s: it is not a directory that only this user can use; remove it", dir)
	}
	s := &dirStore{dir}
	s.sweep()
	return s, nil
}

func (s *dirStore) file(key string) string { return filepath.Join(s.dir, sum([]string{key})) }

func (s *dirStore) Get(key string) ([]byte, bool) {
	file := s.file(key)
	info, err := os.Stat(file)
	if err != nil || time.Since(info.ModTime()) > keepFor {
		return nil, false
	}
	value, err := os.ReadFile(file)
	return value, err == nil
}

// Put replaces the file whole. What can't be kept is forgotten: then the docker command's own behaviour is what is left.
func (s *dirStore) Put(key string, value []byte) {
	file := s.file(key)
	if value == nil {
		_ = os.Remove(file) // it may not be there
		return
	}
	next := fmt.Sprintf("%s.%d", file, os.Getpid())
	if os.WriteFile(next, value, 0o600) != nil || os.Rename(next, file) != nil {
		_ = os.Remove(next) // a part of it, at most
	}
}

// sweep removes what is too old to be asked for.
func (s *dirStore) sweep() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > keepFor {
			_ = os.Remove(filepath.Join(s.dir, e.Name())) // somebody else may have been faster
		}
	}
}
