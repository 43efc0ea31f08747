package profiles

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"hinit/internal/fsutil"
)

const (
	// raceWindow is how long after a command another value of desired_state is taken for a lost update.
	raceWindow = 10 * time.Second

	// clockSlack is how much older than the command the file may seem although it was written after it: time stamps of
	// files are coarse, and on a network file system they are another machine's.
	clockSlack = 2 * time.Second
)

// Intents remembers, for as long as this process lives, what an operator last asked of each gateway, and defends it against
// the other writers of gateway_state.json.
//
// The gateway and the agent's commands read that file, merge and write it back without a lock. A gateway that read the file
// before a command wrote it and writes it after the command takes the intent back without meaning to: the key is gone, or
// has its old value. If that stayed, the next boot would do what nobody asked for. So whoever watches the file calls
// Restore with what it sees:
//
//   - The key is missing, at any time: nobody removes it on purpose, put it back.
//   - Another value, written within 10 seconds of the command: the race can't last longer than the moment between the
//     reading and the writing of one process, and 10 seconds is generous for a slow disk. Put it back.
//   - Another value, written later: somebody meant it. The agent's own command line, another init that shares the volume,
//     or an operator with an editor has changed the intent; it is adopted.
//
// Therefore every command has to come through Set, or through Note where the agent's command line writes the file itself
// right afterwards: a command that Intents doesn't know of looks like a lost update for 10 seconds.
//
// All methods may be called from several goroutines.
type Intents struct {
	store *Store

	mu    sync.Mutex // guards asked; never held while the disk is used
	asked map[string]intent
}

type intent struct {
	want    string
	at      time.Time
	pending bool // writing it to the disk failed
}

// NewIntents returns an empty memory for the profiles of s.
func NewIntents(s *Store) *Intents {
	return &Intents{store: s, asked: make(map[string]intent)}
}

// Set records what an operator asks of profile, [Running] or [Stopped], and writes it as [Store.SetDesired] does. When
// writing fails although the profile exists (disk full), the intent holds all the same: it is what the gateway will be made
// to do, and the next Restore tries to write it again. It blocks on the disk.
func (in *Intents) Set(profile, want string) error {
	defer in.store.lock(profile)()
	err := in.store.setDesired(profile, want)
	if err != nil && (errors.Is(err, ErrNotExist) || errors.Is(err, ErrName) || !isIntent(want)) {
		return err
	}
	in.put(profile, intent{want: want, at: in.store.now(), pending: err != nil})
	return err
}

// Note records an intent that somebody else writes to the disk. It doesn't block.
func (in *Intents) Note(profile, want string) {
	in.put(profile, intent{want: want, at: in.store.now()})
}

// Want returns what was last asked of profile in this life, and false when nothing was. It doesn't block.
func (in *Intents) Want(profile string) (want string, ok bool) {
	i, ok := in.get(profile)
	return i.want, ok
}

// Forget drops what is known of profile, because it is gone. It doesn't block.
func (in *Intents) Forget(profile string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.asked, profile)
}

// Outcome is what [Intents.Restore] did.
type Outcome string

// The outcomes.
const (
	Unchanged Outcome = "unchanged" // the file and the intent agree, or there is no intent
	Restored  Outcome = "restored"  // the file has the intent again
	Adopted   Outcome = "adopted"   // somebody changed the intent: Want has the new one, or none if it is no known state
)

// Restore compares the intent for profile with seen, a state that was just read, and acts by the rules above. Seen is only
// a hint: before anything is written or adopted, the file is read again. With an error the outcome is Unchanged; calling it
// again at the next look is the way to retry. It blocks on the disk, which it doesn't touch while the two agree.
func (in *Intents) Restore(profile string, seen State) (Outcome, error) {
	if i, ok := in.get(profile); !ok || i.agrees(seen) {
		return Unchanged, nil
	}
	defer in.store.lock(profile)()
	i, ok := in.get(profile) // a command may have come first
	if !ok {
		return Unchanged, nil
	}
	var st State
	err := in.store.in(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return err
		}
		st, _ = readState(d, home) // a file without a usable state has lost the intent too
		return nil
	})
	switch {
	case errors.Is(err, ErrNotExist):
		return Unchanged, nil // the profile is gone: that is for others to notice
	case err != nil:
		return Unchanged, fmt.Errorf("cannot restore the desired state of profile %q: %w", profile, err)
	case i.agrees(st):
		return Unchanged, nil
	case st.HasDesired && !i.pending:
		if at := i.judge(st.Written, in.store.now()); at.Sub(i.at) > raceWindow {
			in.adopt(profile, st.Desired, at)
			return Adopted, nil
		}
	}
	if err := in.store.setDesired(profile, i.want); err != nil {
		return Unchanged, err
	}
	i.pending = false
	in.put(profile, i) // not a new command: the window doesn't move
	return Restored, nil
}

// agrees reports whether there is nothing to do about st.
func (i intent) agrees(st State) bool {
	return !i.pending && st.HasDesired && st.Desired == i.want
}

// judge returns when the file was written. Its time stamp counts if it makes sense: one from before the command (a copy
// that kept its time) or from the future counts as just now.
func (i intent) judge(written, now time.Time) time.Time {
	if written.Before(i.at.Add(-clockSlack)) || written.After(now) {
		return now
	}
	return written
}

func (in *Intents) adopt(profile, desired string, at time.Time) {
	if isIntent(desired) {
		in.put(profile, intent{want: desired, at: at})
		return
	}
	in.Forget(profile) // a value that nobody could have asked for is left alone
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
