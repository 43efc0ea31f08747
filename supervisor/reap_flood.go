package supervisor

import "time"

const (
	// A flood begins when floodOrphans orphans are reaped within floodWindow.
	floodOrphans = 16
	floodWindow  = 100 * time.Millisecond
	// floodPause is the time between two reaps in a flood.
	floodPause = 4 * time.Millisecond
	// floodEndReaps is the number of consecutive reaps without an orphan that end a flood.
	floodEndReaps = 5
)

// orphanFlood turns SIGCHLD off while many orphans end, because each SIGCHLD wakes three threads of a Go program. During a
// flood the loop reaps every floodPause instead, so it notices the end of a service later. The zero value means no flood.
type orphanFlood struct {
	active    bool
	orphans   int       // outside a flood: orphans reaped since `since`
	since     time.Time // outside a flood: start of the present floodWindow
	nextReap  time.Time // during a flood: time of the next reap
	idleReaps int       // during a flood: consecutive reaps without an orphan
}

// recordReap decides whether a flood begins or ends. The loop calls it after each reap, with the number of reaped orphans.
// mayFlood is false during a shutdown, because a shutdown must notice each exit immediately. changed reports whether f.active
// has changed.
func (f *orphanFlood) recordReap(now time.Time, orphans int, mayFlood bool) (changed bool) {
	if f.active {
		f.idleReaps++
		if orphans > 0 {
			f.idleReaps = 0
		}
		if f.idleReaps == floodEndReaps || !mayFlood {
			*f = orphanFlood{}
			return true
		}
		f.nextReap = now.Add(floodPause)
		return false
	}
	if orphans == 0 || !mayFlood {
		return false
	}
	if now.Sub(f.since) > floodWindow {
		f.orphans, f.since = 0, now
	}
	f.orphans += orphans
	if f.orphans < floodOrphans {
		return false
	}
	*f = orphanFlood{active: true, nextReap: now.Add(floodPause)}
	return true
}
