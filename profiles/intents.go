package profiles

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"hinit/internal/fsutil"
)

const (
	// raceWindow is the time after a command in which a different desired_state counts as an accident.
	raceWindow = 10 * time.Second

	// clockSlack allows for coarse timestamps and for the clock of a network file system. A file written after a command may seem
	// older than the command by this time.
	clockSlack = 2 * time.Second
)

// RestoreDelay is the time for which a state file must be missing before Restore writes it again.
const RestoreDelay = 2 * time.Second

// Intents keeps the last order of an operator for each gateway during the life of this process. It restores the order after
// another writer of gateway_state.json has overwritten it.
//
// The gateway and the agent's commands read that file, change it and write it back without a lock. A gateway that reads the file
// before a command, and writes the file after the command, overwrites desired_state by accident. The watcher of the file calls
// Restore with each content:
//
//   - The key is missing: Restore restores it.
//   - The whole file is missing: no such race causes that. The file was removed, most likely with the profile. Restore writes it
//     again if the profile still exists after two seconds.
//   - Another value, written within 10 seconds of the command: an accident. Restore writes the order again.
//   - Another value, written later: a program has written it on purpose. Restore adopts it.
//
// This process may end before such a race is over. So Intents also writes each order to a separate file, and the next boot
// applies the same rules (see [Store.Reconcile]).
//
// Every command must call Begin, or Note if the agent's command line then writes the file itself. Otherwise Restore undoes the
// command within 10 seconds, because it takes the change for an accident.
//
// All methods may be called from several goroutines.
type Intents struct {
	// May returns why Intents must not write now. Nil allows every write. Set May before the first use. It must not block.
	May func() error

	store *Store

	mu     sync.Mutex // guards asked; never held during disk operations
	orders map[string]intent
}

type intent struct {
	want    string
	at      time.Time
	pending bool      // the write of the order to the disk has failed
	missing time.Time // when Restore first found the file missing
}

// NewIntents returns Intents without orders, for the profiles of s.
func NewIntents(s *Store) *Intents {
	return &Intents{store: s, orders: make(map[string]intent)}
}

// Begin records an operator's order for a profile, [Running] or [Stopped], and writes it, so that it survives the end of this
// process. The function sync makes the order survive a crash of the machine. The caller may act on the order before it calls
// sync.
//
// If the write fails although the profile exists (disk full), the order is valid, and the next Restore writes it again.
//
// Call Begin before you start a gateway, which writes the same file. Call sync once; after several calls of Begin for a profile
// only the last sync is needed. After an error of sync the order is valid. An error of Begin says that the profile or the value
// is invalid, and that Begin has recorded nothing.
func (in *Intents) Begin(profile, want string) (sync func() error, err error) {
	if err := in.may(); err != nil {
		return nil, err
	}
	defer in.store.lock(profile)()
	now := in.store.now()
	failed := in.write(profile, want, now, soon)
	// The disk may have delayed the write, and meanwhile a gateway may have read the old file. So the order gets the time at the
	// end of the write.
	if late := in.store.now(); late.Sub(now) > clockSlack {
		now = late
		if failed == nil {
			failed = in.store.recordIntent(profile, want, now)
		}
	}
	if failed != nil && (errors.Is(failed, ErrNotExist) || errors.Is(failed, ErrName) || !isIntent(want)) {
		return nil, failed
	}
	in.put(profile, intent{want: want, at: now, pending: failed != nil})
	if failed != nil {
		return func() error { return failed }, nil
	}
	return func() error {
		err := in.store.syncState(profile)
		if err != nil {
			in.markPending(profile, now)
		}
		return err
	}, nil
}

// markPending marks the order of this time as not yet safe on the disk. If a newer order exists, fail does nothing.
func (in *Intents) markPending(profile string, at time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if i, ok := in.orders[profile]; ok && i.at.Equal(at) {
		i.pending = true
		in.orders[profile] = i
	}
}

// write writes an order to the disk: first to hinit's own file, then to the state file.
func (in *Intents) write(profile, want string, at time.Time, how durability) error {
	if err := in.may(); err != nil {
		return err
	}
	if err := in.store.recordIntent(profile, want, at); err != nil {
		return err
	}
	return in.store.setDesired(profile, want, how)
}

// Note records an order that another program writes to the state file. Note blocks on the disk.
func (in *Intents) Note(profile, want string) {
	defer in.store.lock(profile)()
	now := in.store.now()
	_ = in.store.recordIntent(profile, want, now) // for the next process, if this one ends within seconds
	in.put(profile, intent{want: want, at: now})
}

// Want returns the last order for a profile in this process. ok is false without an order. Want doesn't block.
func (in *Intents) Want(profile string) (want string, ok bool) {
	i, ok := in.get(profile)
	return i.want, ok
}

// Pending lists the profiles whose order is not on the disk, because the write has failed. It doesn't block.
func (in *Intents) Pending() (list []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for profile, i := range in.orders {
		if i.pending {
			list = append(list, profile)
		}
	}
	return list
}

func (in *Intents) may() error {
	if in.May == nil {
		return nil
	}
	return in.May()
}

// Clear forgets all orders, because another init now handles the profiles. It doesn't block.
func (in *Intents) Clear() {
	in.mu.Lock()
	defer in.mu.Unlock()
	clear(in.orders)
}

// Forget forgets the order for a profile that is gone. It doesn't block.
func (in *Intents) Forget(profile string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.orders, profile)
}

// Outcome is the result of [Intents.Restore].
type Outcome string

// The outcomes of Restore.
const (
	Unchanged Outcome = "unchanged" // the file has the order, or no order exists
	Restored  Outcome = "restored"  // Restore has written the order to the file again
	Missing   Outcome = "missing"   // the file is missing; call Restore again after RestoreDelay
	Adopted   Outcome = "adopted"   // another program has changed the file on purpose: Want returns the new value, or none if the value is unknown
)

// Restore compares the order for a profile with seen, a state that was just read, and acts by the rules of Intents. Before it
// writes or adopts anything, it reads the file again. After an error the outcome is Unchanged; call Restore again at the next
// scan. Restore blocks on the disk, unless order and state agree.
func (in *Intents) Restore(profile string, seen State) (Outcome, error) {
	if i, ok := in.get(profile); !ok || i.matches(seen) {
		in.recordMissing(profile, time.Time{})
		return Unchanged, nil
	}
	defer in.store.lock(profile)()
	i, ok := in.get(profile) // a newer order may exist
	if !ok {
		return Unchanged, nil
	}
	var st State
	missing := false
	err := in.store.inHome(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return err
		}
		var err error
		st, err = readState(d, home) // an unusable file counts as one without the order
		missing = err == nil && st.Written.IsZero()
		return nil
	})
	switch {
	case errors.Is(err, ErrNotExist):
		return Unchanged, nil // the profile is gone; the watcher reports that
	case err != nil:
		return Unchanged, fmt.Errorf("cannot restore the desired state of profile %q: %w", profile, err)
	case i.matches(st):
		return Unchanged, nil
	case missing && !i.pending && in.isJustMissing(profile, i):
		return Missing, nil
	case st.HasDesired && !i.pending:
		if at := i.writtenAt(st.Written, in.store.now()); at.Sub(i.at) > raceWindow {
			in.adopt(profile, st.Desired, at)
			return Adopted, nil
		}
	}
	if err := in.write(profile, i.want, i.at, synced); err != nil {
		return Unchanged, err
	}
	i.pending, i.missing = false, time.Time{}
	in.put(profile, i) // i.at stays the time of the command, so that raceWindow doesn't start again
	return Restored, nil
}

// isJustMissing records that the state file is missing, and reports whether it has been missing for less than RestoreDelay.
func (in *Intents) isJustMissing(profile string, i intent) bool {
	now := in.store.now()
	if i.missing.IsZero() {
		i.missing = now
		in.recordMissing(profile, now)
	}
	return now.Sub(i.missing) < RestoreDelay
}

// recordMissing records the time since which the state file of a profile is missing. missing is zero if the file exists.
func (in *Intents) recordMissing(profile string, missing time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if i, ok := in.orders[profile]; ok {
		i.missing = missing
		in.orders[profile] = i
	}
}

// matches reports whether st has the order, and no write is pending.
func (i intent) matches(st State) bool {
	return !i.pending && st.HasDesired && st.Desired == i.want
}

// writtenAt returns when the file was written. It replaces a time before the command (a copy that kept its time), or in the
// future, by now.
func (i intent) writtenAt(written, now time.Time) time.Time {
	if written.Before(i.at.Add(-clockSlack)) || written.After(now) {
		return now
	}
	return written
}

func (in *Intents) adopt(profile, desired string, at time.Time) {
	_ = in.store.recordIntent(profile, desired, at) // the old record must not win at the next boot
	if isIntent(desired) {
		in.put(profile, intent{want: desired, at: at})
		return
	}
	in.Forget(profile) // no command writes such a value: keep it
}

func (in *Intents) get(profile string) (intent, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	i, ok := in.orders[profile]
	return i, ok
}

func (in *Intents) put(profile string, i intent) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.orders[profile] = i
}

func isIntent(desired string) bool { return desired == Running || desired == Stopped }
