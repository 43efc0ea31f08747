package feed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"hinit/internal/boot/lookup"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/top/model"
	"hinit/logrotate/reader"
)

const (
	// logHistory is the number of past lines at the beginning of a log.
	logHistory = 500
	// logEvery is the time between two calls of lines. logBatch is the largest number of lines in a call; older lines are dropped.
	logEvery = 200 * time.Millisecond
	logBatch = 2000
	// logWidth limits the bytes of a line.
	logWidth = 4 << 10
)

// Log follows a log file, over rotations, until ctx ends. For an earlier run it reads the last lines of that run. It calls lines
// with nil first, and then with new lines, at most five times a second. If too many lines arrive, lines gets only the newest. If the
// volume hangs, it delays only the goroutine that reads.
func (f *Feed) Log(ctx context.Context, of model.Log, lines func([]model.LogLine)) {
	as, err := f.logReader()
	if err != nil {
		lines([]model.LogLine{{Text: "cannot read the log: " + err.Error()}})
		return
	}
	var mu sync.Mutex
	var fresh []model.LogLine
	ended := make(chan error, 1)
	guard.Go("reading a log", func() {
		o := reader.Options{Dir: filepath.Dir(of.File), N: logHistory, Follow: true}
		if !of.Until.IsZero() {
			o.N, o.Follow, o.Since, o.Previous = -1, false, of.From, true
		}
		ended <- reader.Read(ctx, as, o, func(line []byte) error {
			at, text, _ := reader.Split(line)
			if !of.Until.IsZero() && at.After(of.Until) {
				return errPast
			}
			mu.Lock()
			defer mu.Unlock()
			if len(fresh) == 2*logBatch {
				fresh = append(fresh[:0], fresh[logBatch:]...)
			}
			fresh = append(fresh, model.LogLine{At: at, Text: string(text[:min(len(text), logWidth)])})
			return nil
		})
	})
	lines(nil)
	tick := time.NewTicker(logEvery)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return
		case err = <-ended:
			over = true
		case <-tick.C:
		}
		mu.Lock()
		batch := fresh[max(0, len(fresh)-logBatch):]
		fresh = nil
		mu.Unlock()
		if over && err != nil && !errors.Is(err, errPast) {
			batch = append(batch, model.LogLine{Text: "cannot read the log: " + err.Error()})
		}
		if len(batch) > 0 && ctx.Err() == nil {
			lines(batch)
		}
	}
}

// errPast ends the reading of an earlier run's log.
var errPast = errors.New("the lines are of a later run")

// logReader returns the identity that reads the logs. The path of a log belongs to the init's file system. If the user has named a
// socket, it allows the read only if this process has the same file system, and never as root.
func (f *Feed) logReader() (*fsutil.Actor, error) {
	st := f.status.Load()
	if st == nil {
		return nil, errors.New("hinit has not answered yet")
	}
	if f.here {
		return lookup.LogReader(st.Init.Plain != "", f.env)
	}
	here, err := os.Stat("/")
	if err != nil {
		return nil, err
	}
	there, err := os.Stat(fmt.Sprintf("%s/%d/root/", f.proc(), st.Init.PID))
	if err != nil || f.proc() == "" || !os.SameFile(here, there) {
		return nil, errors.New("it is in another file system; call hinit top or hinit logs in that container")
	}
	return lookup.LogReader(false, f.env)
}
