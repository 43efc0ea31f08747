package supervisor

import "time"

const (
	// A flood begins when this many orphans are reaped within floodWindow.
	floodOrphans = 16
	floodWindow  = 100 * time.Millisecond
	// floodPause is the time between two reaps in a flood.
	floodPause = 4 * time.Millisecond
	// floodEnd is how many reaps in a row must find no orphan to end a flood.
	floodEnd = 5
)

// flood turns SIGCHLD off while orphans end in great numbers, because each SIGCHLD wakes three threads of a Go program. Meanwhile
// the loop reaps every floodPause, so the end of a service is noticed at most that much later. The zero value is no flood.
type flood struct {
	on    bool
	next  time.Time // time of the next reap in a flood
	count int       // outside a flood: orphans in this window; in a flood: reaps in a row that found none
	since time.Time
}

// reaped takes the number of orphans that a reap found, and decides whether a flood begins or ends. matters is false when a flood
// must end at once. It reports whether on has changed.
func (f *flood) reaped(now time.Time, orphans int, matters bool) (changed bool) {
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
