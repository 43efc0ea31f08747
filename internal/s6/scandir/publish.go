package scandir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"hinit/internal/guard"
	"hinit/profiles"
)

// Publish makes the directory of a service that hinit runs by itself. One that is there already stays as it is; that of a
// gateway which nobody has scanned for yet is taken in.
func (s *Scanner) Publish(ctx context.Context, name string, files Files, down bool) error {
	return s.put(ctx, name, native, files, down)
}

// PublishFixed makes a directory behind which there is no service.
func (s *Scanner) PublishFixed(ctx context.Context, name string, files Files) error {
	return s.put(ctx, name, fixed, files, false)
}

func (s *Scanner) put(ctx context.Context, name string, k kind, files Files, down bool) error {
	var err error
	if lost := s.do(ctx, func() {
		err = s.make(name, k, files, down)
		s.publish()
		s.retry(name, postponed{kind: k, files: files, down: down}, err)
	}); lost != nil {
		return lost
	}
	if err != nil {
		return fmt.Errorf("cannot make the slot of %s: %w", name, err)
	}
	return nil
}

// errAnothers says that the name of a slot is another service's, which time does not change.
var errAnothers = errors.New("a directory of that name defines another service; remove it")

// slotRetry is how long after a failure the making of a slot is tried again: a disk that was full has room again some day.
const slotRetry = time.Second

// retry has a slot made later that could not be made.
func (s *Scanner) retry(name string, p postponed, err error) {
	if err == nil || errors.Is(err, errAnothers) {
		return
	}
	p.failed = true
	s.later[name] = p
	s.due.Reset(slotRetry)
}

// make makes a slot. Readers see it after the next publishing.
func (s *Scanner) make(name string, k kind, files Files, down bool) error {
	if old := s.slots[name]; old != nil {
		if old.kind == foreign {
			return errAnothers
		}
		if s.same(old) {
			return nil
		}
		s.forget(old)
	}
	err := s.build(name, k, files, down)
	if errors.Is(err, errLater) {
		return nil
	}
	if profile, ok := profiles.SlotProfile(name); ok && errors.Is(err, fs.ErrExist) {
		err = s.takeGateway(name, profile) // somebody was first, who did not ask for a scan yet
	} else if err == nil {
		var slot *Slot
		if slot, err = s.open(name, k); err == nil {
			s.slots[name] = slot
		}
	}
	return err
}

// errLater says that a slot is not made yet, because somebody else is about to make it.
var errLater = errors.New("somebody else is making it")

// build makes the directory of a slot, in two steps: just before it gets its name it is asked once more whether somebody
// else is about to give that name to a directory. The agent looks whether there is one, makes its own beside it, and then
// can't put it in its place if hinit was faster (contract, section 9.3).
func (s *Scanner) build(name string, k kind, files Files, down bool) error {
	if s.beingMade(name) {
		s.postpone(name, k, files, down)
		return errLater
	}
	hidden := "." + name + ".hinit"
	err := s.dir.MakeTree(hidden, 0o755, files.nodes(down))
	if errors.Is(err, fs.ErrExist) { // somebody else's, or left behind
		if err = s.dir.RemoveAll(hidden); err == nil {
			err = s.dir.MakeTree(hidden, 0o755, files.nodes(down))
		}
	}
	if err != nil {
		return err
	}
	_, err = s.dir.Lstat(name)
	switch {
	case err == nil:
		err = fs.ErrExist
	case s.beingMade(name):
		s.postpone(name, k, files, down)
		err = errLater
	default:
		err = s.dir.Rename(hidden, name)
		if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOTDIR) {
			err = fs.ErrExist
		}
	}
	if err != nil {
		err = errors.Join(err, s.dir.RemoveAll(hidden))
	}
	return err
}

// beingMade says whether the agent is making a slot, under one of the names it has for that. One that was left behind does
// not count for long, nor does one whose time stamp is of no use.
func (s *Scanner) beingMade(name string) bool {
	for _, temp := range []string{"." + name + ".tmp", name + ".tmp"} {
		info, err := s.dir.Lstat(temp)
		if err != nil || time.Since(info.ModTime()).Abs() >= makingTime {
			continue
		}
		if s.making[name].IsZero() {
			s.making[name] = time.Now()
		}
		return time.Since(s.making[name]) < makingLimit
	}
	delete(s.making, name)
	return false
}

// postponed is a slot that is made later, unless somebody else does.
type postponed struct {
	kind  kind
	files Files
	down  bool
	// failed says that it could not be made before, which was said.
	failed bool
}

func (s *Scanner) postpone(name string, k kind, files Files, down bool) {
	s.later[name] = postponed{kind: k, files: files, down: down}
	s.due.Reset(endingPoll)
}

// catchUp makes what was postponed.
func (s *Scanner) catchUp() {
	if len(s.later) == 0 {
		return
	}
	later := maps.Clone(s.later)
	clear(s.later)
	for name, p := range later {
		err := s.make(name, p.kind, p.files, p.down)
		if err != nil && !p.failed {
			s.host.Say("cannot make the slot of %s: %v", name, err)
		}
		s.retry(name, p, err)
	}
	s.publish()
}

// open opens a directory of the scan directory that is no link.
func (s *Scanner) open(name string, k kind) (*Slot, error) {
	d, err := s.dir.Sub(name)
	if err != nil {
		return nil, err
	}
	info, err := d.Lstat("")
	if err != nil {
		_ = d.Close() // nothing was done with it
		return nil, err
	}
	return &Slot{Name: name, Dir: filepath.Join(s.ground.Scan, name), kind: k, id: idOf(info), dir: d}, nil
}

// Withdraw removes the directory of a service that is gone. Another directory that has taken its place stays.
func (s *Scanner) Withdraw(ctx context.Context, name string) error {
	var err error
	if lost := s.do(ctx, func() {
		delete(s.later, name)
		s.offers.drop(name)
		slot := s.slots[name]
		if slot == nil || slot.kind == foreign {
			return
		}
		if s.same(slot) {
			err = s.dir.RemoveAll(name)
		}
		s.forget(slot)
		s.publish()
	}); lost != nil {
		return lost
	}
	if err != nil {
		return fmt.Errorf("cannot remove the slot of %s: %w", name, err)
	}
	return nil
}

func (s *Scanner) forget(slot *Slot) {
	delete(s.slots, slot.Name)
	slot.close()
}

// SetDown says by the down file of a slot whether its service starts by itself. Without a slot it does nothing.
func (s *Scanner) SetDown(name string, down bool) error {
	if s.offers.setDown(name, down) {
		return nil
	}
	slot := s.table.Load().byName[name]
	if slot == nil {
		return nil
	}
	if err := slot.SetDown(down); err != nil && !errors.Is(err, fs.ErrClosed) && !errors.Is(err, fs.ErrNotExist) { // it has just gone
		return fmt.Errorf("cannot change the down file of %s: %w", name, err)
	}
	return nil
}

// present says whether the directory of a slot is still there. One that is not is on its way out.
func (s *Scanner) present(slot *Slot) error {
	name, _, _ := strings.Cut(slot.Name, "/")
	top := s.table.Load().byName[name]
	if top == nil {
		return fmt.Errorf("%w: %q is gone", ErrUnknown, slot.Dir)
	}
	if s.same(top) {
		return nil
	}
	if s.pending.CompareAndSwap(false, true) {
		guard.Go("looking at the scan directory", func() { _ = s.do(context.Background(), s.look) }) // it ends with the scanner
	}
	return fmt.Errorf("%w: %q is gone", ErrUnknown, slot.Dir)
}

// same says whether the name of a slot is still that of the slot's directory.
func (s *Scanner) same(slot *Slot) bool {
	info, err := s.dir.Lstat(slot.Name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // what can't be looked at is not gone for that
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return idOf(info) == slot.link
	}
	return slot.link == fileID{} && idOf(info) == slot.id
}
