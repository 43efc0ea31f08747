package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"hinit/internal/fsutil"
)

// stopsFile records the duration of the last stop of the container, if it was near its limit. The agent can write the file, so
// hinit only shows its content.
const stopsFile = ".hinit-slow-stop"

// longestStop is the largest duration that hinit accepts from the file.
const longestStop = time.Hour

// NoteStop records the duration of a stop of the container, if it needed most of its budget. Otherwise NoteStop removes the old
// record.
func (s *Store) NoteStop(took, budget time.Duration) error {
	return s.inHome(Default, func(d *fsutil.Dir, home string) error {
		file := filepath.Join(home, stopsFile)
		if took < budget*3/4 {
			if err := d.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
		text := fmt.Sprintf("%d %d\n", took.Milliseconds(), budget.Milliseconds())
		return d.Replace(file, []byte(text), fsutil.ReplaceOptions{Mode: 0o644, Volatile: true})
	})
}

// SlowStop returns the duration and the budget of the last stop of the container, or 0 if the stop was not slow.
func (s *Store) SlowStop() (took, budget time.Duration) {
	var of [2]int64
	_ = s.inHome(Default, func(d *fsutil.Dir, home string) error {
		text, err := d.ReadFile(filepath.Join(home, stopsFile), maxMarker)
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
