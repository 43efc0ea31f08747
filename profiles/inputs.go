package profiles

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"hinit/internal/fsutil"
)

// maxInput is what is read of one input file.
const maxInput = 4 << 20

// Hash stands for the content of what a gateway reads when it starts. "" is unknown.
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

func (s *Store) inputs() [3]string { return [...]string{configFile, envFile, s.marker} }

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
