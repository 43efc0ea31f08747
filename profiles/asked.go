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

	"hinit/internal/fsutil"
)

// askedFile holds the last order of an operator for a gateway, in its profile's home. Only this package writes it.
const askedFile = ".hinit-intent.json"

// asked is the content of askedFile.
type asked struct {
	Desired string    `json:"desired_state"`
	At      time.Time `json:"at"`
	// Kernel is the boot id of the machine. The file is not synced, so it may be an old one after a crash of the machine; then it
	// doesn't count.
	Kernel string `json:"kernel"`
}

// recordAsked writes an intent to askedFile. It needs the lock of profile.
func (s *Store) recordAsked(profile, want string, at time.Time) error {
	if !isIntent(want) {
		return nil // the write of the state reports it to the caller
	}
	data, err := json.Marshal(asked{Desired: want, At: at.Round(0), Kernel: kernelBoot()})
	if err != nil {
		return fmt.Errorf("cannot record what is asked of profile %q: %w", profile, err)
	}
	return s.in(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return fmt.Errorf("cannot record what is asked of profile %q: %w", profile, err)
		}
		rel := filepath.Join(home, askedFile)
		err := d.Replace(rel, data, fsutil.ReplaceOptions{Mode: 0o644, Volatile: true})
		if err == nil {
			return nil
		}
		if gone := d.Remove(rel); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			return err // an old record is there, and would speak against the state file
		}
		return nil
	})
}

// kernelBoot names the present boot of the machine (random(4)), "" where that is not told.
var kernelBoot = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

// correct puts the intent that was last asked for into a state that has lost it, and reports whether it had.
func (s *Store) correct(d *fsutil.Dir, home string, st *State) bool {
	var a asked
	if !st.Exists || !readMarker(d, filepath.Join(home, askedFile), &a) || !isIntent(a.Desired) || a.Kernel != kernelBoot() {
		return false
	}
	lost := !st.HasDesired || st.Desired != a.Desired && st.Written.Sub(a.At) <= raceWindow
	if !lost || a.At.After(s.now().Add(clockSlack)) { // from the future: the order of the writes is unknown
		return false
	}
	st.Desired, st.HasDesired = a.Desired, true
	return true
}
