package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/container/timetable"
	"hinit/internal/fsutil"
)

// scheduleFile says when tasks ran that make up for missed times. It is the agent's, who may delete it.
const (
	scheduleFile = ".hinit-schedule.json"
	maxSchedule  = 1 << 20
)

// schedules makes the timetable of this container. A plain supervisor has no directory of its own to remember in.
func (c *container) schedules() *timetable.Table {
	var memory timetable.Memory
	if c.route.Load().HasProfiles() {
		memory = lastRuns{c}
	}
	return timetable.New(c.loop, memory, func(err error) { c.Warn("%v", err) })
}

// lastRuns implements [timetable.Memory].
type lastRuns struct{ c *container }

type lastRunsFile struct {
	Version int                  `json:"version"`
	Last    map[string]time.Time `json:"last"`
}

func (l lastRuns) dir() (*fsutil.Dir, error) {
	return fsutil.OpenReal(l.c.cfg.Load().Home, l.c.agent.Actor.In(blocking.Volume))
}

// Load implements [timetable.Memory].
func (l lastRuns) Load() (map[string]time.Time, error) {
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

// Save implements [timetable.Memory].
func (l lastRuns) Save(last map[string]time.Time) error {
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
