package container

import (
	"os"
	"sync"
	"time"

	"hinit/profiles"
)

// late are the profiles that did not answer when the boot read them. What ran before is started when they appear.
type late struct {
	mu    sync.Mutex
	names map[string]bool
	all   bool
}

// expectLate takes note of what the boot could not decide about.
func (k *keeper) expectLate(plan profiles.Plan) {
	if on, err := k.c.store.Multiplexed(os.Getenv); err == nil && on { // the default gateway serves them
		return
	}
	k.late.expect(plan.Unread, plan.Silent...)
}

// expect replaces what was expected before: all profiles, or those that are named.
func (l *late) expect(all bool, names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all, l.names = all, make(map[string]bool, len(names))
	for _, name := range names {
		l.names[name] = true
	}
}

// start reports whether the gateway of a profile that has appeared ran before the container, which was started at started, and is
// still to be started. A profile that was expected by its name counts once. While all are expected, a profile counts each time it
// appears, as long as its state file is older than the container.
func (l *late) start(profile string, state profiles.State, started time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.names[profile] && !l.all {
		return false
	}
	delete(l.names, profile)
	return state.Prior() == profiles.Running && state.Written.Before(started)
}
