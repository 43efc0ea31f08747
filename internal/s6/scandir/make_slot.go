package scandir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/s6/formats"
	"hinit/profiles"
)

// Publish makes the slot of one of hinit's services. It keeps an existing directory of hinit. It also accepts a gateway's slot
// that the agent has made without asking for a scan.
func (s *Scanner) Publish(ctx context.Context, name string, files Files, down bool) error {
	return s.publishSlot(ctx, name, nativeSlot, files, down)
}

// PublishFixed makes a fixed slot: it has no service, and always appears as up.
func (s *Scanner) PublishFixed(ctx context.Context, name string, files Files) error {
	return s.publishSlot(ctx, name, fixedSlot, files, false)
}

func (s *Scanner) publishSlot(ctx context.Context, name string, k slotKind, files Files, down bool) error {
	var err error
	if lost := s.doInScanner(ctx, func() {
		// The new definition replaces an earlier one from Enqueue.
		s.queue.storeDefinition(name, slotDefinition{Kind: k, Files: files, Down: down, definingFilesOnly: k == fixedSlot})
		err = s.makeQueued(name)
		s.publish()
	}); lost != nil {
		return lost
	}
	return err
}

var errForeignDir = errors.New("a directory of that name defines another service; remove it")

const slotRetryDelay = time.Second

// makeQueued creates the directory of the slot called name, if the slot is in the queue. A finished slot leaves the queue at the
// next publish. After a failure the slot stays for another attempt; makeQueued returns only the first error of a slot.
func (s *Scanner) makeQueued(name string) error {
	d, open := s.queue.get(name)
	if !open {
		return nil
	}
	err := s.makeSlot(name, d)
	switch {
	case err == nil, errors.Is(err, errForeignDir):
		s.unpublished = append(s.unpublished, madeSlot{name, d.Down})
	case errors.Is(err, errAgentIsMaking):
		s.failedSlots[name], err = true, nil
		s.checkTimer.Reset(agentMakingPollInterval)
	default:
		s.failedSlots[name] = true
		s.checkTimer.Reset(slotRetryDelay)
		s.queue.change(name, func(d *slotDefinition) { d.Failed, d.definingFilesOnly = true, false })
		if d.Failed {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("cannot make the slot of %s: %w", name, err)
	}
	return nil
}

// makeSlot makes the slot name, unless its directory exists and is unchanged. It replaces a directory that another program has
// removed or replaced.
func (s *Scanner) makeSlot(name string, d slotDefinition) error {
	e := s.entryOf(name)
	defer s.removeUnused(name)
	if old := e.Slot; old != nil {
		if old.Kind == foreignSlot {
			return errForeignDir
		}
		if s.nameUnchanged(old) {
			if !d.definingFilesOnly {
				s.addMissingFiles(e)
			}
			return nil
		}
		s.forgetEntry(e)
	}
	err := s.makeDir(name, d)
	if profile, ok := profiles.SlotProfile(name); ok && errors.Is(err, fs.ErrExist) {
		err = s.acceptGateway(name, profile) // another program has made the slot, and has not yet asked for a scan
	} else if err == nil {
		var slot *Slot
		if slot, err = s.openSlot(name, d.Kind); err == nil {
			e.Slot = slot
			if d.definingFilesOnly {
				e.missingFiles = d.Files.otherFiles()
				s.idleTimer.Reset(s.layout.completeAfter)
			}
		}
	}
	return err
}

var errAgentIsMaking = errors.New("somebody else is making it")

// makeDir makes the directory of a slot. If the agent is making the same slot, it returns errAgentIsMaking. The agent has
// already checked that the name is free, and its rename would now fail (contract, section 9.3).
func (s *Scanner) makeDir(name string, d slotDefinition) error {
	nodes := d.Files.definingFiles(d.Down)
	if !d.definingFilesOnly {
		nodes = append(nodes, d.Files.otherFiles()...)
	}
	return s.dir.WithIdentity(func(in *fsutil.Dir) error {
		return in.MakeTree(name, 0o755, nodes, func() error {
			if s.agentIsMaking(in, name) {
				return errAgentIsMaking
			}
			return nil
		})
	})
}

// agentIsMaking reports whether the agent is making the slot of a gateway under a temporary name. It ignores a temporary
// directory that is old or has a wrong time.
func (s *Scanner) agentIsMaking(dir *fsutil.Dir, name string) bool {
	if _, ok := profiles.SlotProfile(name); !ok {
		return false
	}
	e := s.entries[name]
	for _, temp := range []string{"." + name + ".tmp", name + ".tmp"} {
		info, err := dir.Lstat(temp)
		if err != nil || time.Since(info.ModTime()).Abs() >= agentMakingTimeout {
			continue
		}
		if e.firstSeenMaking.IsZero() {
			e.firstSeenMaking = time.Now()
		}
		return time.Since(e.firstSeenMaking) < agentMakingLimit
	}
	e.firstSeenMaking = time.Time{}
	return false
}

// slotDefinition describes a slot of hinit that must be made. A re-execution hands over all fields except those with the tag "-".
type slotDefinition struct {
	Kind   slotKind `reexec:"kind"`
	Files  Files    `reexec:"files"`
	Down   bool     `reexec:"down"`
	Failed bool     `reexec:"failed"` // an earlier attempt has failed and was reported

	definingFilesOnly bool `reexec:"-"` // make only the files run and down now, and the others when the scanner is idle
}

// retryFailed tries again to make the slots whose last attempt has failed.
func (s *Scanner) retryFailed() {
	again := s.failedSlots
	s.failedSlots = make(map[string]bool)
	for name := range again {
		s.makeOrReport(name)
	}
	if len(again) > 0 {
		s.publish()
	}
}

// openSlot opens the existing directory name as a slot.
func (s *Scanner) openSlot(name string, k slotKind) (*Slot, error) {
	d, err := s.dir.OpenSubdir(name)
	if err != nil {
		return nil, err
	}
	info, err := d.Lstat("")
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return &Slot{Name: name, Dir: filepath.Join(s.layout.ScanDir, name), Kind: k, ID: fsutil.IDOf(info), dir: d}, nil
}

// RemoveSlot removes the slot of one of hinit's services, unless another directory now has its name.
func (s *Scanner) RemoveSlot(ctx context.Context, name string) error {
	var err error
	if lost := s.doInScanner(ctx, func() {
		s.queue.drop(name)
		e := s.entryOf(name)
		defer s.removeUnused(name)
		if e.Slot == nil || e.Slot.Kind == foreignSlot {
			return
		}
		if s.nameUnchanged(e.Slot) {
			err = s.dir.RemoveAll(name)
		}
		s.forgetEntry(e)
		s.publish()
	}); lost != nil {
		return lost
	}
	if err != nil {
		return fmt.Errorf("cannot remove the slot of %s: %w", name, err)
	}
	return nil
}

func (s *Scanner) forgetEntry(e *entry) {
	e.Slot.close()
	e.Slot, e.missingFiles = nil, nil
}

// SetDown creates or removes the down file of an existing slot.
func (s *Scanner) SetDown(name string, down bool) {
	if s.queue.change(name, func(d *slotDefinition) { d.Down = down }) {
		return
	}
	if slot := s.table.Load().byName[name]; slot != nil {
		s.setDown(slot, down)
	}
}

func (s *Scanner) setDown(slot *Slot, down bool) {
	err := slot.SetDown(down)
	// ErrClosed and ErrNotExist mean that another call has just removed the slot.
	if err != nil && !errors.Is(err, fs.ErrClosed) && !errors.Is(err, fs.ErrNotExist) {
		s.host.Say("cannot change the down file of %s: %v", slot.Name, err)
	}
}

// checkPresent returns an error if the directory of a slot was removed, and then starts a check of all slots.
func (s *Scanner) checkPresent(slot *Slot) error {
	name, _, _ := strings.Cut(slot.Name, "/")
	top := s.table.Load().byName[name]
	if top != nil && s.nameUnchanged(top) {
		return nil
	}
	if top != nil && s.checkRequested.CompareAndSwap(false, true) {
		guard.Go("looking at the scan directory", func() { _ = s.doInScanner(context.Background(), s.checkSlots) }) // the goroutine ends with the scanner at the latest
	}
	return notASlotError("no such slot: %q is gone", slot.Dir)
}

// nameUnchanged reports whether the slot's name still leads to the slot's own directory.
func (s *Scanner) nameUnchanged(slot *Slot) bool { return slot.hasName(s.dir) }

// queue has the slots that must still be made. The scanner makes a slot when it is idle, or earlier when somebody reads it. After
// a failure, the slot stays in the queue.
type queue struct {
	wake chan struct{}

	mu                sync.Mutex
	items             []queueItem               // items in the order of processing
	definitionsByName map[string]slotDefinition // by slot name; of queued slots, and of finished slots that are not yet published
}

// queueItem is either the name of a slot to make, or a channel to close after all earlier items.
type queueItem struct {
	name string
	done chan<- struct{}
}

// Enqueue asks the scanner to make the directory of one of hinit's services later. Unlike [Scanner.Publish], it doesn't block.
// The scanner reports errors to the host.
func (s *Scanner) Enqueue(name string, files Files, down bool) {
	s.queue.add(name, slotDefinition{Kind: nativeSlot, Files: files, Down: down, definingFilesOnly: true})
}

// QueueDone returns a channel that is closed when the scanner has tried to make every slot that is now in the queue.
func (s *Scanner) QueueDone() <-chan struct{} {
	reached := make(chan struct{})
	s.queue.appendItem(queueItem{done: reached})
	return reached
}

// makeIfQueued makes the slot with the service directory path now, if it is in the queue.
func (s *Scanner) makeIfQueued(ctx context.Context, path string) error {
	name := filepath.Base(path)
	if name == formats.LogDir && !s.queue.has(name) {
		name = filepath.Base(filepath.Dir(path))
	}
	if !s.queue.has(name) {
		return nil
	}
	return s.doInScanner(ctx, func() {
		s.makeOrReport(name)
		s.publish()
	})
}

func (q *queue) add(name string, d slotDefinition) {
	q.storeDefinition(name, d)
	q.appendItem(queueItem{name: name})
}

func (q *queue) storeDefinition(name string, d slotDefinition) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.definitionsByName[name] = d
}

func (q *queue) appendItem(t queueItem) {
	q.mu.Lock()
	q.items = append(q.items, t)
	q.mu.Unlock()
	pause.Wake(q.wake)
}

func (q *queue) has(name string) bool {
	_, open := q.get(name)
	return open
}

func (q *queue) get(name string) (d slotDefinition, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, open = q.definitionsByName[name]
	return d, open
}

// change changes the stored definition of a slot. It returns false if the queue has none.
func (q *queue) change(name string, change func(*slotDefinition)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, open := q.definitionsByName[name]
	if open {
		change(&d)
		q.definitionsByName[name] = d
	}
	return open
}

// drop removes the definition of a slot from the queue and returns it.
func (q *queue) drop(name string) (d slotDefinition, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	d, open = q.definitionsByName[name]
	delete(q.definitionsByName, name)
	return d, open
}

func (q *queue) next() (first queueItem, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return queueItem{}, false
	}
	first, q.items = q.items[0], q.items[1:]
	return first, len(q.items) > 0
}

func (q *queue) definitions() map[string]slotDefinition {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.definitionsByName)
}

// maxUnpublished is the maximum number of finished slots before the next publish. A publish copies the whole table, so a
// publish after each slot would be expensive.
const maxUnpublished = 64

// serveQueue processes the first item of the queue: it makes a slot, or closes a channel of QueueDone. It publishes new slots
// in batches, because a publish copies the whole table.
func (s *Scanner) serveQueue() {
	first, more := s.queue.next()
	if first.name != "" {
		s.makeOrReport(first.name)
	}
	if len(s.unpublished) > 0 && (!more || first.done != nil || len(s.unpublished) >= maxUnpublished) {
		s.publish()
	}
	if first.done != nil {
		close(first.done)
	}
	if more {
		pause.Wake(s.queue.wake)
	}
}

func (s *Scanner) makeOrReport(name string) {
	if err := s.makeQueued(name); err != nil {
		s.host.Say("%v", err)
	}
}

type madeSlot struct {
	name string
	down bool // the slot was made with a down file
}

// removePublished removes newly published slots from the queue. If SetDown was called for a slot after it was made, it now
// changes the down file.
func (s *Scanner) removePublished() {
	unseen := s.unpublished
	s.unpublished = nil
	for _, m := range unseen {
		d, open := s.queue.drop(m.name)
		e := s.entries[m.name]
		if open && d.Down != m.down && e != nil && e.Slot != nil {
			s.setDown(e.Slot, d.Down)
		}
	}
}

// addNextMissingFiles adds the remaining files to one slot. Only an idle scanner calls it, because it must not delay the end of
// the container. On an overlay file system it can take longer than a short CMD.
func (s *Scanner) addNextMissingFiles() {
	for _, e := range s.entries {
		if e.missingFiles != nil {
			s.addMissingFiles(e)
			s.idleTimer.Reset(0)
			return
		}
	}
}

func (s *Scanner) addMissingFiles(e *entry) {
	nodes := e.missingFiles
	e.missingFiles = nil
	if len(nodes) == 0 {
		return
	}
	if err := e.Slot.dir.AddNodes(nodes); err != nil && s.nameUnchanged(e.Slot) {
		s.host.Say("cannot complete the slot of %s: %v", e.Slot.Name, err)
	}
}
