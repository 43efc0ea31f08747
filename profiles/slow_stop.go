package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"hinit/internal/fsutil"
)

// slowStopFile records how long the last stop of the container took, if that was close to the time limit. The agent can write the
// file, so hinit only displays its content.
const slowStopFile = ".hinit-slow-stop"

// longestStop is the largest duration that hinit accepts when it reads slowStopFile.
const longestStop = time.Hour

// RecordStopDuration records how long the container took to stop, if that is at least three quarters of the time limit budget.
// Otherwise RecordStopDuration removes the old record.
func (s *Store) RecordStopDuration(took, budget time.Duration) error {
	return s.WithHome(Default, func(d *fsutil.Dir, home string) error {
		file := filepath.Join(home, slowStopFile)
		if took < budget*3/4 {
			if err := d.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
		text := fmt.Sprintf("%d %d\n", took.Milliseconds(), budget.Milliseconds())
		return d.Replace(file, []byte(text), fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
	})
}

// SlowStop returns the duration of the container's last stop and its time limit, as [Store.RecordStopDuration] recorded them. It
// returns zeros if that stop was not slow.
func (s *Store) SlowStop() (took, budget time.Duration) {
	var of [2]int64
	_ = s.WithHome(Default, func(d *fsutil.Dir, home string) error {
		text, err := d.ReadFile(filepath.Join(home, slowStopFile), maxMarker)
		if err == nil {
			_, err = fmt.Sscan(string(text), &of[0], &of[1])
		}
		return err
	})
	most := longestStop.Milliseconds()
	if of[0] <= 0 || of[1] <= 0 || of[0] > most || of[1] > most {
		return 0, 0
	}
	return time.Duration(of[0]) * time.Millisecond, time.Duration(of[1]) * time.Millisecond
}
