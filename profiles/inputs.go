package profiles

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"hinit/internal/fsutil"
)

// maxInput is the number of bytes that are read of one input file.
const maxInput = 4 << 20

// Hash identifies the content of the files that a gateway reads when it starts. "" is unknown.
type Hash string

// InputsHash returns the hash over config.yaml, .env and the marker in the home of profile. It changes when one of them
// does, comes or goes. A file that can't be read (too large, a symbolic link) counts with its metadata instead of its
// content. The error is about the name or the volume as a whole; the hash is unknown then.
func (s *Store) InputsHash(profile string) (Hash, error) {
	var h Hash
	err := s.in(profile, func(d *fsutil.Dir, home string) error {
		h = s.inputsHash(d, home)
		return nil
	})
	return h, err
}

// clockTick is how much too early the time of a file may be: the kernel takes it from its last tick. On volumes with whole seconds
// it may be more.
const clockTick = 20 * time.Millisecond

// InputsChangedSince reports whether one of the files that InputsHash reads was written after t or just before, by the clock of the
// volume. A file that can't be looked at was not.
func (s *Store) InputsChangedSince(profile string, t time.Time) bool {
	changed := false
	_ = s.in(profile, func(d *fsutil.Dir, home string) error {
		for _, name := range s.inputs() {
			if info, err := d.Lstat(filepath.Join(home, name)); err == nil && info.ModTime().After(t.Add(-clockTick)) {
				changed = true
			}
		}
		return nil
	})
	return changed
}

func (s *Store) inputs() [3]string { return [...]string{configFile, envFile, s.marker} }

// inputStamps are the stamps of the files that inputsHash reads.
func (s *Store) inputStamps(d *fsutil.Dir, home string) (stamps [3]stamp) {
	for i, name := range s.inputs() {
		stamps[i] = stampAt(d, filepath.Join(home, name))
	}
	return stamps
}

func (s *Store) inputsHash(d *fsutil.Dir, home string) Hash {
	sum := sha256.New()
	for _, name := range s.inputs() {
		rel := filepath.Join(home, name)
		data, err := d.ReadFile(rel, maxInput)
		switch {
		case err == nil:
			sum.Write(fmt.Appendf(nil, "%s: %d bytes\n", name, len(data)))
			sum.Write(data)
		case errors.Is(err, fs.ErrNotExist):
			sum.Write(fmt.Appendf(nil, "%s: missing\n", name))
		default:
			info, err := d.Lstat(rel)
			if err != nil {
				sum.Write(fmt.Appendf(nil, "%s: unreadable\n", name))
				continue
			}
			sum.Write(fmt.Appendf(nil, "%s: %v\n", name, stampOf(info)))
		}
	}
	return Hash(hex.EncodeToString(sum.Sum(nil)[:16]))
}
