package profiles

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

const (
	// accidentWindow is the time after a command in which a different desired_state in the file is taken for an accident.
	accidentWindow = 10 * time.Second

	// timestampSlack is how far file timestamps may differ from the clock. Timestamps are coarse, and a network file system has
	// its own clock. So a file that was written after a command may look older than the command.
	timestampSlack = 2 * time.Second
)

// RestoreDelay is how long a state file must be missing before Restore writes it again.
const RestoreDelay = 2 * time.Second

// Intents remembers, while this process lives, the operator's last order for each gateway: to run or to stop. If another writer
// of gateway_state.json overwrites the order by accident, Intents writes it again.
//
// The gateway and the agent's commands read that file, change it and write it back without a lock. If a gateway reads the file
// before a command and writes it after the command, it restores the old desired_state by accident. When the watcher reports a
// change of the file, the caller passes the new content to Restore, which distinguishes these cases:
//
//   - The key desired_state is missing: Restore writes it again.
//   - The whole file is missing. Writers never remove the file, so it was removed, most likely with the profile. Restore writes it
//     again if the profile still exists after two seconds.
//   - desired_state has another value, which was written within 10 seconds of the command: Restore takes this for an accident and
//     writes the order again.
//   - desired_state has another value, which was written later: a program has written it on purpose. Restore adopts it as the new
//     order.
//
// This process may end before such a race is decided. So Intents also writes each order to a separate file, and the next boot
// applies the same rules to desired_state (see [Store.Reconcile]). At boot, a file that is missing or invalid means that no order
// exists (contract, section 6).
//
// Every command that changes desired_state must call Record. If the agent's command line writes the file itself, hinit calls
// RecordExternal first. Otherwise Restore may take the change for an accident and undo it.
//
// All methods may be called from several goroutines.
type Intents struct {
	// CheckWrite returns an error while Intents must not write, because another init serves the volume. By default, every write
	// is allowed. Set it before the first use. It must not block.
	CheckWrite func() error

	store *Store

	mu      sync.Mutex // Guards orders; never held during disk operations.
	intents map[string]intent
}

// intent is the last order for one profile: the desired state and the time of the order.
type intent struct {
	want         string
	uptime       time.Duration // Time of the order since the machine booted, because the clock may be set.
	pending      bool          // Whether writing the order to the disk has failed, so that Restore must write it.
	missingSince time.Time     `reexec:"missing"` // When Restore first found no state file; zero if the file exists.
}

// NewIntents returns an Intents for the profiles of s. It holds no orders yet.
func NewIntents(s *Store) *Intents {
	return &Intents{store: s, intents: make(map[string]intent), CheckWrite: func() error { return nil }}
}

// Record records an operator's order for a profile, [Running] or [Stopped]. It writes the order to the volume, so that the order
// survives the end of this process. The function sync makes the order survive a crash of the machine; the caller may act on the
// order before.
//
// If the write fails, for example on a full disk, the order is still valid, and the next Restore writes it.
//
// Call Record before you start a gateway, because the gateway writes the same file. Call sync once. After several calls of Record
// for a profile, only the last sync is needed. If sync fails, the order stays valid; its error is worded to follow "the order".
// If Record returns an error, nothing is recorded: the profile doesn't exist, its name or want is invalid, or CheckWrite forbids
// the write.
func (in *Intents) Record(profile, want string) (sync func() error, err error) {
	if err := in.CheckWrite(); err != nil {
		return nil, err
	}
	defer in.store.lock(profile)()
	now := in.store.uptime()
	failed := in.write(profile, want, now, false)
	// A slow disk may have delayed the write, and meanwhile a gateway may have read the old file. So begin accidentWindow at the
	// end of the write.
	if late := in.store.uptime(); late-now > timestampSlack {
		now = late
		if failed == nil {
			failed = in.store.recordIntent(profile, want, now)
		}
	}
	if failed != nil && (errors.Is(failed, ErrNotExist) || errors.Is(failed, ErrInvalidName) || !isIntent(want)) {
		return nil, failed
	}
	if failed != nil && in.store.isRecorded(profile, want) {
		failed = nil // The volume already has this order, so no write was necessary.
	}
	in.put(profile, intent{want: want, uptime: now, pending: failed != nil})
	if failed != nil {
		return func() error { return fmt.Errorf("%w: %w", ErrNotRecorded, failed) }, nil
	}
	return func() error {
		err := in.store.syncState(profile)
		if err != nil {
			in.update(profile, func(i *intent) { i.pending = i.pending || i.uptime == now }) // A newer order would have another time.
			err = fmt.Errorf("may be undone by a crash of the machine, because the disk has not confirmed its record: %w", err)
		}
		return err
	}, nil
}

// ErrNotRecorded is the error about an order that could not be written to the volume.
var ErrNotRecorded = errors.New("cannot be recorded, so a restart of the container may undo it")

// write writes an order to the volume: to intentFile, then to the state file.
func (in *Intents) write(profile, want string, uptime time.Duration, sync bool) error {
	if err := in.CheckWrite(); err != nil {
		return err
	}
	if err := in.store.recordIntent(profile, want, uptime); err != nil {
		return err
	}
	return in.store.setDesired(profile, want, sync)
}

// RecordExternal records an order that another program will write into the state file itself. Otherwise it works like Record. It
// blocks on the disk.
func (in *Intents) RecordExternal(profile, want string) {
	defer in.store.lock(profile)()
	now := in.store.uptime()
	_ = in.store.recordIntent(profile, want, now) // The next boot follows this record if this process ends before the other program writes.
	in.put(profile, intent{want: want, uptime: now})
}

// LastOrder returns the last order for a profile. If this process has recorded none, ok is false. LastOrder doesn't block.
func (in *Intents) LastOrder(profile string) (want string, ok bool) {
	i, ok := in.get(profile)
	return i.want, ok
}

// Pending lists the profiles whose last order could not be written to the disk. It doesn't block.
func (in *Intents) Pending() (list []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for profile, i := range in.intents {
		if i.pending {
			list = append(list, profile)
		}
	}
	return list
}

// ForgetAllOrders forgets all orders, because another init serves the profiles now. It doesn't block.
func (in *Intents) ForgetAllOrders() {
	in.mu.Lock()
	defer in.mu.Unlock()
	clear(in.intents)
}

// ForgetOrder forgets the order for a profile that has been removed. It doesn't block.
func (in *Intents) ForgetOrder(profile string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.intents, profile)
}

// Outcome says what [Intents.Restore] has done.
type Outcome string

// The outcomes of [Intents.Restore].
const (
	Unchanged Outcome = "unchanged" // The file agrees with the order, or no order exists.
	Restored  Outcome = "restored"  // Restore has written the order to the file again.
	Missing   Outcome = "missing"   // The file is missing; call Restore again after RestoreDelay.
	Adopted   Outcome = "adopted"   // Another program changed desired_state on purpose; LastOrder now returns the new value if it is valid.
)

// Restore compares seen, the state that the caller has just read, with the order for the profile, and follows the rules of
// [Intents]. Before it writes or adopts anything, it reads the file again. After an error the outcome is Unchanged, and the
// caller must call Restore again at the next scan. Restore blocks on the disk unless seen agrees with the order.
func (in *Intents) Restore(profile string, seen State) (Outcome, error) {
	if i, ok := in.get(profile); !ok || i.agreesWith(seen) {
		in.update(profile, func(i *intent) { i.missingSince = time.Time{} })
		return Unchanged, nil
	}
	defer in.store.lock(profile)()
	i, ok := in.get(profile) // Another command may have changed the order while this call waited for the lock.
	if !ok {
		return Unchanged, nil
	}
	var st State
	missing := false
	err := in.store.WithHome(profile, func(d *fsutil.Dir, home string) error {
		if err := homeExists(d, home); err != nil {
			return err
		}
		var err error
		st, err = readState(d, home) // An unusable state file counts as one without desired_state.
		missing = err == nil && st.Written.IsZero()
		return nil
	})
	switch {
	case errors.Is(err, ErrNotExist):
		return Unchanged, nil // The profile is gone; the watcher reports that.
	case err != nil:
		return Unchanged, fmt.Errorf("cannot restore the desired state of profile %q: %w", profile, err)
	case i.agreesWith(st):
		return Unchanged, nil
	case missing && !i.pending && in.isRecentlyMissing(profile, i):
		return Missing, nil
	case st.HasDesired && !i.pending:
		if late := i.writtenAfter(in.store, st.Written); late > accidentWindow {
			in.adoptDesired(profile, st.Desired, i.uptime+late)
			return Adopted, nil
		}
	}
	if err := in.write(profile, i.want, i.uptime, true); err != nil {
		return Unchanged, err
	}
	i.pending, i.missingSince = false, time.Time{}
	in.put(profile, i) // Keep i.uptime, so that the accident window isn't extended.
	return Restored, nil
}

// isRecentlyMissing records when the state file was first found missing. It returns true if that was less than RestoreDelay ago.
// i is the order for the profile.
func (in *Intents) isRecentlyMissing(profile string, i intent) bool {
	now := in.store.now()
	if i.missingSince.IsZero() {
		i.missingSince = now
		in.update(profile, func(i *intent) { i.missingSince = now })
	}
	return now.Sub(i.missingSince) < RestoreDelay
}

// agreesWith reports whether the state st agrees with the order and the order is on the disk.
func (i intent) agreesWith(st State) bool { return !i.pending && st.HasDesired && st.Desired == i.want }

// writtenAfter returns how long after the order the state file was written. It uses written, the file's modification time, if
// that is plausible, and otherwise the present time. A time in the future is not plausible, and neither is a time before the
// order, which a copy of an old file can have. Both times are counted back from now, so setting the clock between order and write
// makes no difference.
func (i intent) writtenAfter(s *Store, written time.Time) time.Duration {
	order, file := s.uptime()-i.uptime, s.now().Sub(written)
	if file < 0 || file > order+timestampSlack {
		return order
	}
	return order - file
}

// adoptDesired makes a value that another program has written on purpose the new order.
func (in *Intents) adoptDesired(profile, desired string, uptime time.Duration) {
	_ = in.store.recordIntent(profile, desired, uptime) // Otherwise the next boot would follow the old record.
	if isIntent(desired) {
		in.put(profile, intent{want: desired, uptime: uptime})
		return
	}
	in.ForgetOrder(profile) // No command writes this value: leave it in the file, and forget the order.
}

func (in *Intents) get(profile string) (intent, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	i, ok := in.intents[profile]
	return i, ok
}

func (in *Intents) put(profile string, i intent) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.intents[profile] = i
}

// update changes the stored order of a profile. If the profile has no order, update does nothing.
func (in *Intents) update(profile string, change func(*intent)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if i, ok := in.intents[profile]; ok {
		change(&i)
		in.intents[profile] = i
	}
}

func isIntent(desired string) bool { return desired == Running || desired == Stopped }

// Handover is the state that [Intents] passes to the next program of PID 1: the last order for each profile.
type Handover map[string]intent

// HandOver returns a copy of all orders for [Intents.TakeOver] in the next program. It doesn't block.
func (in *Intents) HandOver() Handover {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.intents)
}

// TakeOver adds the orders that the previous program of PID 1 has handed over.
func (in *Intents) TakeOver(h Handover) {
	in.mu.Lock()
	defer in.mu.Unlock()
	maps.Copy(in.intents, h)
}

// intentFile is the file in a home with the operator's last order for the gateway. Only this package writes it.
const intentFile = ".hinit-intent.json"

// recordedIntent is the content of intentFile.
type recordedIntent struct {
	Desired string        `json:"desired_state"`
	Uptime  time.Duration `json:"uptime"` // Time of the order, see intent; 0 in a record of an earlier version.
	// Kernel is the boot ID of the machine when the record was written. After a reboot of the machine the record is ignored: the
	// file isn't synced, so a crash may restore an older version of it.
	Kernel string `json:"kernel"`
}

// recordIntent writes the order want to intentFile. uptime is the time of the order, see intent. If the write fails, it removes
// the old record, which would contradict the state file. The caller holds the lock of the profile.
func (s *Store) recordIntent(profile, want string, uptime time.Duration) error {
	if !isIntent(want) {
		return nil // setDesired reports the invalid value.
	}
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		data, err := json.Marshal(recordedIntent{Desired: want, Uptime: uptime, Kernel: kernelBootID()})
		if err = cmp.Or(homeExists(d, home), err); err != nil {
			return fmt.Errorf("cannot record what is asked of profile %q: %w", profile, err)
		}
		rel := filepath.Join(home, intentFile)
		err = d.Replace(rel, data, fsutil.ReplaceOptions{Mode: 0o644, NoSync: true})
		if err != nil && removeIfExists(d, rel) == nil {
			return nil // No old record is left that could contradict the state file.
		}
		return err
	})
}

// isRecorded reports whether the state file contains want and intentFile contains no other order. A boot could undo want if it
// did.
func (s *Store) isRecorded(profile, want string) bool {
	is, err := readHome(s, profile, func(d *fsutil.Dir, home string) (bool, error) {
		var old recordedIntent
		st, err := readState(d, home)
		return st.Desired == want && !(readMarker(d, filepath.Join(home, intentFile), &old) && old.Desired != want), err
	})
	return is && err == nil
}

// kernelBootID returns the boot ID of the machine (random(4)). If it is unknown, the result is "".
var kernelBootID = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

// restoreRecorded applies the rules of [Intents] at boot. If another writer has overwritten the recorded order by accident, it
// sets the desired state in st to the order and returns true. It doesn't write the state file.
func (s *Store) restoreRecorded(d *fsutil.Dir, home string, st *State) bool {
	var a recordedIntent
	if !st.Exists || !readMarker(d, filepath.Join(home, intentFile), &a) || !isIntent(a.Desired) || a.Kernel != kernelBootID() {
		return false
	}
	order, file := s.uptime()-a.Uptime, s.now().Sub(st.Written) // Compare ages, so that setting the clock in between makes no difference.
	if st.HasDesired && (st.Desired == a.Desired || order-file > accidentWindow) {
		return false
	}
	st.Desired, st.HasDesired = a.Desired, true
	return true
}

const (
	// reserveFile is a file in a home that occupies disk blocks. If the disk is full, the next state file is written over these
	// blocks, so that a stop or start can still be recorded.
	reserveFile = ".hinit-reserve"
	// reserveFileSize is the size of this file in bytes; most state files are smaller. If an order on a full disk has used the
	// reserve, perhaps only minReserve bytes are free for the next one.
	reserveFileSize, minReserve = 8 << 10, 4 << 10
)

// isDiskFull reports whether an error means that the disk, or a quota on it, is full.
func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// writeOverReserve writes data over the reserve file of a home, and renames this file to rel. The blocks never become free, so no
// other process can take them.
func writeOverReserve(d *fsutil.Dir, home, rel string, data []byte, mode fs.FileMode) error {
	from := filepath.Join(home, reserveFile)
	if err := d.Overwrite(from, data, mode); err != nil {
		return err
	}
	return d.Rename(from, rel)
}

// emptyReserve is the content of a reserve file. A boot writes the same bytes for each profile, so none needs memory of its own.
var emptyReserve [reserveFileSize]byte

// makeReserve creates the reserve file of a home if it is missing. It is called at the first scan of the home, and after each
// order. It ignores errors: the next order tries again.
func makeReserve(d *fsutil.Dir, home string) {
	rel := filepath.Join(home, reserveFile)
	if _, err := d.Lstat(rel); errors.Is(err, fs.ErrNotExist) {
		for size := reserveFileSize; size >= minReserve && err != nil; size /= 2 {
			err = d.Replace(rel, emptyReserve[:size], fsutil.ReplaceOptions{Mode: 0o600, NoSync: true})
		}
	}
}
