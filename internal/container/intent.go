package container

import (
	"time"

	"hinit/internal/guard"
	"hinit/profiles"
)

// recordEvery is how often a record of intent that the disk refused is tried again.
const recordEvery = time.Second

// recordLater tries to record the intent for a profile until that has come about or the profile is gone: nobody else would
// before the next command. It does not block; what does has a goroutine of its own, one a profile.
func (k *keeper) recordLater(name, profile string) {
	k.mu.Lock()
	waiting := k.unrecorded[profile]
	k.unrecorded[profile] = true
	k.mu.Unlock()
	if !waiting {
		time.AfterFunc(recordEvery, guard.Func("recording an intent", func() { k.record(name, profile) }))
	}
}

func (k *keeper) record(name, profile string) {
	k.mu.Lock()
	delete(k.unrecorded, profile) // first: a command that fails from now on needs another try
	k.mu.Unlock()
	switch outcome, err := k.c.intents.Restore(profile, profiles.State{}); {
	case err != nil:
		k.recordLater(name, profile)
	case outcome == profiles.Restored:
		k.c.say("[hinit] %s: desired_state is recorded now", name)
	}
}
