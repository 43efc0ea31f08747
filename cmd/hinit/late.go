package main

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
	k.late.mu.Lock()
	defer k.late.mu.Unlock()
	k.late.all, k.late.names = plan.Unread, make(map[string]bool)
	for _, name := range plan.Silent {
		k.late.names[name] = true
	}
}

// start reports whether the gateway of a profile that has appeared ran before the container, which was started then, and is still to be
// started. It does so once a profile.
func (l *late) start(profile string, state profiles.State, started time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.names[profile] && !l.all {
		return false
	}
	delete(l.names, profile)
	return state.Prior() == profiles.Running && state.Written.Before(started)
}
