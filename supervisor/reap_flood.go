package supervisor

import "time"

const (
	// So many orphans within so long are a flood.
	floodOrphans = 16
	floodWindow  = 100 * time.Millisecond
	// floodPause is how long the dead of a flood collect before they are reaped together.
	floodPause = 4 * time.Millisecond
	// floodEnd is how many pauses in a row bring no orphan when a flood is over.
	floodEnd = 5
)

// flood lets orphans collect while they come in floods, because each SIGCHLD wakes three threads of a Go program. Meanwhile the
// signal is off and the loop looks every few milliseconds, until some looks have brought nothing. The end of a service is noticed
// one pause later. The zero value is calm.
type flood struct {
	on    bool
	next  time.Time // when to look, while it lasts
	count int       // orphans in this window; in a flood, looks in a row that have brought none
	since time.Time
}

// reaped notes how many orphans one look has brought, and whether floods matter now. It reports whether on has changed.
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
