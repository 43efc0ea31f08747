package timetable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
)

// scheduleFile stores the last start times of tasks that make up for missed times. It belongs to the agent, who may delete it.
const (
	scheduleFile = ".hinit-schedule.json"
	maxSchedule  = 1 << 20
)

// LastRuns is a [RunStore] in a file of the data directory. It accesses the file as the user that Actor specifies.
type LastRuns struct {
	Home  string
	Actor *fsutil.Actor
}

type lastRunsFile struct {
	Version int                  `json:"version"`
	Last    map[string]time.Time `json:"last"`
}

func (l LastRuns) dir() (*fsutil.Dir, error) {
	return fsutil.OpenNoLink(l.Home, l.Actor.Limited(blocking.Volume))
}

// Load implements [RunStore].
func (l LastRuns) Load() (map[string]time.Time, error) {
	d, err := l.dir()
	if err != nil {
		return nil, fmt.Errorf("cannot tell which tasks have missed their time: %w", err)
	}
	defer d.Close()
	var f lastRunsFile
	data, err := d.ReadFile(scheduleFile, maxSchedule)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil:
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell which tasks have missed their time: %w; delete %s in the data directory", err, scheduleFile)
	}
	return f.Last, nil
}

// Save implements [RunStore].
func (l LastRuns) Save(last map[string]time.Time) error {
	data, err := json.Marshal(lastRunsFile{1, last})
	if err == nil {
		var d *fsutil.Dir
		if d, err = l.dir(); err == nil {
			defer d.Close()
			err = d.Replace(scheduleFile, append(data, '\n'), fsutil.ReplaceOptions{Mode: 0o600})
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write down when tasks ran, so a missed time may go unseen: %w", err)
	}
	return nil
}
