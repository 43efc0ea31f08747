package feed

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"hinit/internal/boot"
	"hinit/internal/guard"
	"hinit/internal/top/model"
	"hinit/logrotate/reader"
)

const (
	// logHistory is how many lines of the past a log begins with.
	logHistory = 500
	// logEvery is how often lines are handed on, and logBatch how many of them: the last.
	logEvery = 200 * time.Millisecond
	logBatch = 2000
	// logWidth is how much of a line is kept.
	logWidth = 4 << 10
)

// Log follows a log file, over rotations, until ctx ends. lines gets nil first, and then what was written, at most five times a
// second; of a flood the end. A volume that hangs delays only the goroutine that reads.
func (f *Feed) Log(ctx context.Context, current string, lines func([]model.LogLine)) {
	st := f.status.Load()
	as, err := boot.LogReader(st != nil && st.Init.Plain != "", f.env)
	if err != nil {
		lines([]model.LogLine{{Text: "cannot read the log: " + err.Error()}})
		return
	}
	var mu sync.Mutex
	var fresh []model.LogLine
	ended := make(chan error, 1)
	guard.Go("reading a log", func() {
		o := reader.Options{Dir: filepath.Dir(current), N: logHistory, Follow: true}
		ended <- reader.Read(ctx, as, o, func(line []byte) error {
			at, text, _ := reader.Split(line)
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
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-ended:
			if ctx.Err() == nil && err != nil {
				lines([]model.LogLine{{Text: "cannot read the log: " + err.Error()}})
			}
			return
		case <-tick.C:
		}
		mu.Lock()
		batch := fresh[max(0, len(fresh)-logBatch):]
		fresh = nil
		mu.Unlock()
		if len(batch) > 0 {
			lines(batch)
		}
	}
}
