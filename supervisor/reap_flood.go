package supervisor

import "time"

const (
	// A flood begins when this number of orphans is reaped within floodWindow.
	floodOrphans = 16
	floodWindow  = 100 * time.Millisecond
	// floodPause is the time between two reaps in a flood.
	floodPause = 4 * time.Millisecond
	// floodEnd is the number of reaps in a row without an orphan that ends a flood.
	floodEnd = 5
)

// flood turns SIGCHLD off while many orphans end, because each SIGCHLD wakes three threads of a Go program. Meanwhile the loop
// reaps every floodPause, so it sees the end of a service at most floodPause late. The zero value is no flood.
type flood struct {
	on    bool
	next  time.Time // time of the next reap in a flood
	count int       // outside a flood: number of orphans in this window; in a flood: number of reaps in a row without an orphan
	since time.Time
}

// countOrphans receives the number of orphans of one reap, and decides whether a flood begins or ends. If matters is false, a
// flood ends at once. changed reports whether on has changed.
func (f *flood) countOrphans(now time.Time, orphans int, matters bool) (changed bool) {
	if f.on {
		f.count++
		if orphans > 0 {
			f.count = 0
		}
		if f.count == floodEnd || !matters {
			*f = flood{}
			return true
		}
		f.next = now.Add(floodPause)
		return false
	}
	if orphans == 0 || !matters {
		return false
	}
	if now.Sub(f.since) > floodWindow {
		f.count, f.since = 0, now
	}
	f.count += orphans
	if f.count < floodOrphans {
		return false
	}
	*f = flood{on: true, next: now.Add(floodPause)}
	return true
}
