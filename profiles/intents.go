package profiles

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"hinit/internal/fsutil"
)

const (
	// raceWindow is the time after a command in which another value of desired_state counts as a lost update.
	raceWindow = 10 * time.Second

	// clockSlack is how much older than the command a file may seem that was written after it. Time stamps are coarse, and on a
	// network file system they are another machine's.
	clockSlack = 2 * time.Second
)

// RestoreDelay is how long a state file stays missing before it is made again.
const RestoreDelay = 2 * time.Second

// Intents remembers the last order of an operator for each gateway, as long as this process lives, and restores it when another
// writer of gateway_state.json overwrites it.
//
// The gateway and the agent's commands read that file, change it and write it back without a lock. A gateway that reads the file
// before a command writes it, and writes it afterwards, overwrites desired_state by accident. The watcher of the file calls
// Restore with each content:
//
//   - The key is missing: it is put back.
//   - The whole file is missing: no race loses it, so somebody removes it, most likely with the profile. It is put back if the profile is still there after two seconds.
//   - Another value, written within 10 seconds of the command: a lost update. It is put back.
//   - Another value, written later: somebody meant it. It is adopted.
//
// The race can end after this process has, when the container is killed. So each intent is also written to a file of its own, and
// the next boot applies the same rules (see [Store.Reconcile]).
//
// Every command must come through Set, or through Note where the agent's command line writes the file itself right afterwards. A
// command that Intents doesn't know of looks like a lost update for 10 seconds.
//
// All methods may be called from several goroutines.
type Intents struct {
	// May says why no intent may be written for now; nil is no such rule. It is set before the first use and must not block.
	May func() error

	store *Store

	mu    sync.Mutex // guards asked; never held while the disk is used
	asked map[string]intent
}

type intent struct {
	want    string
	at      time.Time
	pending bool      // writing it to the disk failed
	missing time.Time // since when the file has been seen missing
}

// NewIntents returns an empty memory for the profiles of s.
func NewIntents(s *Store) *Intents {
	return &Intents{store: s, asked: make(map[string]intent)}
}

// Set records an operator's order for profile, [Running] or [Stopped], and writes it as [Store.SetDesired] does. When writing
// fails although the profile exists (disk full), the intent holds all the same, and the next Restore writes it again. It blocks on
// the disk.
func (in *Intents) Set(profile, want string) error {
	sync, err := in.Begin(profile, want)
	if err != nil {
		return err
	}
	return sync()
}

// Begin is the first half of Set: it writes the intent, so that it survives the end of this process. The caller may act on it
// while sync, the second half, makes it survive the end of the machine. Call Begin before a gateway is started that writes the
// same file. Call sync once, unless another Begin for the profile follows, whose sync is for both. An error of sync means the
// same as an error of Set: the intent holds all the same. An error of Begin says that there is no such profile or intent, and
// that nothing was recorded.
func (in *Intents) Begin(profile, want string) (sync func() error, err error) {
	if err := in.may(); err != nil {
		return nil, err
	}
	defer in.store.lock(profile)()
	now := in.store.now()
	failed := in.write(profile, want, now, soon)
	// A gateway may have read the file before a record that the disk held up. So the intent gets the time at which it was written.
	if late := in.store.now(); late.Sub(now) > clockSlack {
		now = late
		if failed == nil {
			failed = in.store.recordAsked(profile, want, now)
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
			in.fail(profile, now)
		}
		return err
	}, nil
}

// fail notes that the intent of that time is not on the disk, unless another has come since.
func (in *Intents) fail(profile string, at time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if i, ok := in.asked[profile]; ok && i.at.Equal(at) {
		i.pending = true
		in.asked[profile] = i
	}
}

// write puts an intent on the disk: first into hinit's own file, then into the state file.
func (in *Intents) write(profile, want string, at time.Time, how durability) error {
	if err := in.may(); err != nil {
		return err
	}
	if err := in.store.recordAsked(profile, want, at); err != nil {
		return err
	}
	return in.store.setDesired(profile, want, how)
}

// Note records an intent that another program writes to the disk. It blocks on the disk.
func (in *Intents) Note(profile, want string) {
	defer in.store.lock(profile)()
	now := in.store.now()
	_ = in.store.recordAsked(profile, want, now) // the next process needs it if this one ends within seconds
	in.put(profile, intent{want: want, at: now})
}

// Want returns the last order for profile in this process, and false when there was none. It doesn't block.
func (in *Intents) Want(profile string) (want string, ok bool) {
	i, ok := in.get(profile)
	return i.want, ok
}

// Pending lists the profiles whose intent could not be written to the disk. It doesn't block.
func (in *Intents) Pending() (list []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for profile, i := range in.asked {
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

// Clear forgets the orders for all profiles, because another init has them now. It doesn't block.
func (in *Intents) Clear() {
	in.mu.Lock()
	defer in.mu.Unlock()
	clear(in.asked)
}

// Forget forgets the order for profile, because the profile is gone. It doesn't block.
func (in *Intents) Forget(profile string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.asked, profile)
}

// Outcome is the result of [Intents.Restore].
type Outcome string

// The outcomes.
const (
	Unchanged Outcome = "unchanged" // the file and the intent agree, or there is no intent
	Restored  Outcome = "restored"  // the file has the intent again
	Missing   Outcome = "missing"   // there is no file; call Restore again after RestoreDelay
	Adopted   Outcome = "adopted"   // somebody changed the intent: Want has the new one, or none if it is no known state
)

// Restore compares the intent for profile with seen, a state that was just read, and acts by the rules above. It reads the file
// again before it writes or adopts anything. With an error the outcome is Unchanged; call it again at the next scan. It blocks on
// the disk, which it doesn't touch while the two agree.
func (in *Intents) Restore(profile string, seen State) (Outcome, error) {
	if i, ok := in.get(profile); !ok || i.agrees(seen) {
		in.seen(profile, time.Time{})
		return Unchanged, nil
	}
	defer in.store.lock(profile)()
	i, ok := in.get(profile) // a command may have come first
	if !ok {
		return Unchanged, nil
	}
	var st State
	missing := false
	err := in.store.in(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return err
		}
		var err error
		st, err = readState(d, home) // a file without a usable state has lost the intent too
		missing = err == nil && st.Written.IsZero()
		return nil
	})
	switch {
	case errors.Is(err, ErrNotExist):
		return Unchanged, nil // the profile is gone: that is for others to notice
	case err != nil:
		return Unchanged, fmt.Errorf("cannot restore the desired state of profile %q: %w", profile, err)
	case i.agrees(st):
		return Unchanged, nil
	case missing && !i.pending && in.tooSoon(profile, i):
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
	in.put(profile, i) // not a new command: the window doesn't move
	return Restored, nil
}

// tooSoon notes that the file of an intent is missing and reports whether it may come back by itself or go with its profile.
func (in *Intents) tooSoon(profile string, i intent) bool {
	now := in.store.now()
	if i.missing.IsZero() {
		i.missing = now
		in.seen(profile, now)
	}
	return now.Sub(i.missing) < RestoreDelay
}

// seen notes since when the file of an intent is missing, the zero time for one that is there.
func (in *Intents) seen(profile string, missing time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if i, ok := in.asked[profile]; ok {
		i.missing = missing
		in.asked[profile] = i
	}
}

// agrees reports whether there is nothing to do about st.
func (i intent) agrees(st State) bool {
	return !i.pending && st.HasDesired && st.Desired == i.want
}

// writtenAt returns when the file was written. A time stamp from before the command (a copy that kept its time) or from the future
// counts as now.
func (i intent) writtenAt(written, now time.Time) time.Time {
	if written.Before(i.at.Add(-clockSlack)) || written.After(now) {
		return now
	}
	return written
}

func (in *Intents) adopt(profile, desired string, at time.Time) {
	_ = in.store.recordAsked(profile, desired, at) // the old record has lost its force with its age
	if isIntent(desired) {
		in.put(profile, intent{want: desired, at: at})
		return
	}
	in.Forget(profile) // a value that no command writes is left alone
}

func (in *Intents) get(profile string) (intent, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	i, ok := in.asked[profile]
	return i, ok
}

func (in *Intents) put(profile string, i intent) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asked[profile] = i
}

func isIntent(desired string) bool { return desired == Running || desired == Stopped }
