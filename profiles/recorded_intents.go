package profiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// intentFile is the file in a profile's home that records the operator's last order for its gateway. Only this package writes it.
const intentFile = ".hinit-intent.json"

// recordedIntent is the content of intentFile.
type recordedIntent struct {
	Desired string    `json:"desired_state"`
	At      time.Time `json:"at"`
	// Kernel is the machine's boot ID when the record was written. Later boots of the machine ignore the record: the file is not
	// synced, so a crash of the machine may bring back an older version.
	Kernel string `json:"kernel"`
}

// recordIntent writes an order to intentFile. The parameter want is the desired state, and the parameter at is the time of the
// order. If the write fails, recordIntent removes the old record, so that the record can't contradict the state file. The caller
// holds the lock of the profile.
func (s *Store) recordIntent(profile, want string, at time.Time) error {
	if !isIntent(want) {
		return nil // setDesired reports the invalid value
	}
	data, err := json.Marshal(recordedIntent{Desired: want, At: at.Round(0), Kernel: kernelBootID()})
	if err != nil {
		return fmt.Errorf("cannot record what is asked of profile %q: %w", profile, err)
	}
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return fmt.Errorf("cannot record what is asked of profile %q: %w", profile, err)
		}
		rel := filepath.Join(home, intentFile)
		err := d.Replace(rel, data, fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
		if err == nil {
			return nil
		}
		if gone := d.Remove(rel); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			return err // the old record stays and contradicts the state file, so report the error
		}
		return nil
	})
}

// kernelBootID returns the boot ID of the machine (random(4)), or "" if it is unknown.
var kernelBootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

// restoreRecorded sets the desired state in st to the recorded order, if another writer has overwritten the order by
// accident. It reports whether it changed st. It does not write the state file.
func (s *Store) restoreRecorded(d *fsutil.Dir, home string, st *State) bool {
	var a recordedIntent
	if !st.Exists || !readMarker(d, filepath.Join(home, intentFile), &a) || !isIntent(a.Desired) || a.Kernel != kernelBootID() {
		return false
	}
	lost := !st.HasDesired || st.Desired != a.Desired && st.Written.Sub(a.At) <= accidentWindow
	if !lost || a.At.After(s.now().Add(clockSlack)) { // the record is from the future, so the order of the two writes is unknown
		return false
	}
	st.Desired, st.HasDesired = a.Desired, true
	return true
}

const (
	// reserveFile is a file in a profile's home that occupies disk blocks. When the disk is full, the next state file is written
	// over these blocks.
	reserveFile = ".hinit-reserve"
	// reserveFileSize is the size of the reserve file in bytes. State files are usually smaller.
	reserveFileSize = 8 << 10
)

// isDiskFull reports whether an error means that the disk, or a quota on it, is full.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// writeOverReserve writes data over the reserve file of a home and renames that file to rel. The blocks are never free in
// between, so no other process can take them.
func writeOverReserve(d *fsutil.Dir, home, rel string, data []byte, mode fs.FileMode) error {
	from := filepath.Join(home, reserveFile)
	if err := d.Overwrite(from, data, mode); err != nil {
		return err
	}
	return d.Rename(from, rel)
}

// makeReserve creates the reserve file of a home if it is missing. The watcher calls it when it first scans the home, and
// setDesiredIn after each order. An error is ignored, because the next order tries again.
func makeReserve(d *fsutil.Dir, home string) {
	rel := filepath.Join(home, reserveFile)
	if _, err := d.Lstat(rel); errors.Is(err, fs.ErrNotExist) {
		_ = d.Replace(rel, make([]byte, reserveFileSize), fsutil.ReplaceOptions{Mode: 0o600, NoSync: true})
	}
}
