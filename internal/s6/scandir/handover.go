package scandir

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/handover"
	"hinit/internal/proc"
	"hinit/internal/s6"
	"hinit/supervisor"
)

// kept is what a successor needs beside the slots, as of the last publishing. It is immutable.
type kept struct {
	pairs   []keptPair
	ending  map[string]time.Time
	later   map[string]postponed
	refused map[string]fileID
}

type keptPair struct {
	name    string
	leaving bool
	service keptPlace
	logger  bool
	logs    keptPlace // of the logger
	pipe    pipe
}

type keptPlace struct {
	path string
	id   fileID
	root bool
	pin  *os.File
	said string
}

// keep takes note of what is not in the table.
func (s *Scanner) keep() kept {
	k := kept{ending: maps.Clone(s.ending), later: maps.Clone(s.later), refused: maps.Clone(s.refused)}
	for _, p := range s.pairs {
		k.pairs = append(k.pairs, keptPair{
			name: p.name, leaving: p.leaving, service: p.service.keep(),
			logger: p.logger != nil, logs: p.logs.keep(), pipe: p.pipe,
		})
	}
	return k
}

func (p *place) keep() keptPlace {
	if p == nil {
		return keptPlace{}
	}
	return keptPlace{p.path, p.id, p.root, p.pin, p.said}
}

// handed is what a scanner tells its successor in another image of this process.
type handed struct {
	Slots   []handedSlot
	Pairs   []handedPair
	Ending  map[string]time.Time
	Later   map[string]postponed
	Refused map[string]fileID
	Lock    int // descriptor, as all below; -1 for none
}

type handedSlot struct {
	Name     string
	Kind     kind
	ID, Link fileID
	Exports  map[string]string
}

type handedPair struct {
	Name        string
	Leaving     bool
	Service     handedPlace
	Logger      *handedPlace
	Read, Write int // ends of the pipe between them
}

type handedPlace struct {
	Path string
	ID   fileID
	Root bool
	Pin  int
	Said string
}

func (k keptPlace) hand() handedPlace {
	return handedPlace{k.path, k.id, k.root, handover.Descriptor(k.pin), k.said}
}

// Hold brings the scanner to rest between two things it does, so that what Export returns is all there is. release lets it
// go on.
func (s *Scanner) Hold(ctx context.Context) (release func(), err error) {
	released := make(chan struct{})
	rest := func() {
		s.publish()
		select {
		case <-released:
		case <-s.ctx.Done():
		}
	}
	select {
	case s.requests <- rest: // it takes one only when it does nothing else
		return func() { close(released) }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the scan directory %q is busy: %w", s.ground.Scan, context.Cause(ctx))
	case <-s.ended:
		return nil, errGone
	}
}

// Export returns what a successor needs to go on, and the descriptors that it needs open. It does not block. Of a scanner
// that is not held it is what was last published.
func (s *Scanner) Export(c *handover.Codec) (json.RawMessage, []int, error) {
	t := s.table.Load()
	h := handed{Ending: t.kept.ending, Later: t.kept.later, Refused: t.kept.refused, Lock: handover.Descriptor(s.lock)}
	if offered := s.offers.all(); len(offered) > 0 {
		h.Later = maps.Clone(h.Later)
		maps.Copy(h.Later, offered)
	}
	for _, slot := range t.sorted {
		if !strings.Contains(slot.Name, "/") { // loggers are with their pairs
			h.Slots = append(h.Slots, handedSlot{slot.Name, slot.kind, slot.id, slot.link, slot.exports})
		}
	}
	open := []int{h.Lock}
	for _, p := range t.kept.pairs {
		out := handedPair{
			Name: p.name, Leaving: p.leaving, Service: p.service.hand(),
			Read: handover.Descriptor(p.pipe.r), Write: handover.Descriptor(p.pipe.w),
		}
		open = append(open, out.Service.Pin, out.Read, out.Write)
		if p.logger {
			logs := p.logs.hand()
			out.Logger = &logs
			open = append(open, logs.Pin)
		}
		h.Pairs = append(h.Pairs, out)
	}
	data, err := c.Encode(&h)
	return data, slices.DeleteFunc(open, func(fd int) bool { return fd < 0 }), err
}

// Resume makes the successor of a scanner that was exported. It touches nothing of what is there; what has changed meanwhile
// is found by the first look. Readers see the slots when it returns, the work begins with [Scanner.Start]. files are those
// that the supervisor has taken over, by their descriptors: a descriptor has one file only.
func Resume(host Host, ground Ground, c *handover.Codec, data json.RawMessage, files map[int]*os.File) (*Scanner, error) {
	var h handed
	if err := c.Decode(data, &h); err != nil {
		return nil, fmt.Errorf("cannot take over the scan directory: %w", err)
	}
	ground = ground.inTurn()
	dir, err := fsutil.OpenReal(ground.Scan, ground.Agent)
	if err != nil {
		return nil, fmt.Errorf("cannot take over the scan directory: %w", err)
	}
	lock := handover.File(h.Lock, "lock")
	if lock == nil {
		if lock, err = ground.takeLock(); err != nil {
			_ = dir.Close() // nothing was written through it
			return nil, err
		}
	}
	s := newScanner(host, ground, dir, lock)
	s.resumed = make(chan struct{})
	maps.Copy(s.ending, h.Ending)
	for _, name := range slices.Sorted(maps.Keys(h.Later)) {
		s.offers.add(name, h.Later[name])
	}
	maps.Copy(s.refused, h.Refused)
	file := func(fd int, name string) *os.File {
		if f := files[fd]; f != nil {
			return f
		}
		return handover.File(fd, name)
	}
	for _, p := range h.Pairs {
		next := &pair{
			name: p.Name, leaving: p.Leaving, service: p.Service.take(),
			pipe: pipe{file(p.Read, "logger"), file(p.Write, "logger")},
		}
		if p.Logger != nil {
			next.logs = p.Logger.take()
			next.logger = &Slot{Name: p.Name + "/" + s6.LogDir, Dir: next.logs.path, kind: foreign, id: next.logs.id, pair: next}
		}
		s.pairs[p.Name] = next
	}
	for _, old := range h.Slots {
		slot := &Slot{
			Name: old.Name, Dir: filepath.Join(ground.Scan, old.Name), kind: old.Kind, id: old.ID, link: old.Link, exports: old.Exports,
		}
		if slot.kind == foreign {
			if slot.pair = s.pairs[old.Name]; slot.pair == nil {
				continue // the supervisor was never told
			}
		}
		s.slots[old.Name] = slot
	}
	s.publish()
	return s, nil
}

// take makes the place that was handed over. It is not opened yet.
func (h handedPlace) take() *place {
	return &place{path: h.Path, id: h.ID, root: h.Root, pin: handover.File(h.Pin, "pin"), said: h.Said}
}

// Start begins to work, for the successor of another scanner. It ends with ctx.
func (s *Scanner) Start(ctx context.Context) {
	s.ctx = ctx
	guard.Go("scanning for services", func() {
		s.reopen()
		close(s.resumed)
		s.run()
	})
}

// Resumed is closed when a successor has the directories open, and says of every slot what the scanner before it did.
func (s *Scanner) Resumed() <-chan struct{} { return s.resumed }

// reopen opens what the scanner before this one had open. Definitions are read by the look that is due at once, and the
// supervisor hears of every service again: it may not have heard the last word of the image before.
func (s *Scanner) reopen() {
	s.observeFiles()
	for name, slot := range s.slots {
		if next := s.reopenSlot(slot); next != nil {
			s.slots[name] = next
		}
	}
	for _, p := range s.pairs {
		if p.logger == nil {
			continue
		}
		p.logs.reopen(false, s.ground.foreign)
		logger := *p.logger
		logger.dir = p.logs.dir
		if p.logger = &logger; s.host.Snapshot().Find(logger.Name) == nil {
			p.logger = nil // it is defined anew
		}
		s.watch(p.logs.path)
	}
	s.publish()
	s.due.Reset(0)
}

// reopenSlot returns the slot with its directory open, nil when that is gone or another one.
func (s *Scanner) reopenSlot(slot *Slot) *Slot {
	next := *slot
	if slot.kind != foreign {
		opened, err := s.open(slot.Name, slot.kind)
		switch {
		case err != nil:
			return nil
		case opened.id != slot.id:
			opened.close()
			return nil
		}
		opened.exports = slot.exports
		return opened
	}
	p := slot.pair
	if p.leaving {
		return nil
	}
	p.service.reopen(slot.link != fileID{}, s.ground.foreign)
	s.watch(p.service.path)
	next.id, next.dir = p.service.id, p.service.dir
	if next.dir != nil {
		next.definition = s6.ReadDefinition(next.dir)
	}
	return &next
}

// reopen opens the directory that the place is, if its name still means that. Through a link it is whatever that leads to.
func (p *place) reopen(link bool, agent *fsutil.Actor) {
	if p.root {
		agent = fsutil.Self().In(blocking.Foreign)
	}
	open := fsutil.OpenReal
	if link {
		open = fsutil.OpenDir
	}
	dir, err := open(p.path, agent)
	if err != nil {
		return
	}
	info, err := dir.Lstat("")
	if err != nil || !link && idOf(info) != p.id {
		_ = dir.Close() // it is another one
		return
	}
	p.dir, p.id, p.link = dir, idOf(info), link
}

// Pinned says whether the directory of a run is known by a descriptor that a slot keeps open. In another image of this process
// that number means the directory again only once the slot has registered its service again, so nothing may be run in it before.
func Pinned(run proc.Spec) bool { return strings.HasPrefix(run.Dir, pinned) }

// Finish returns what runs the finish program of a service that a scanner has registered with the given run: a function
// can't be handed over.
func Finish(name string, run proc.Spec) func(supervisor.Exit) proc.Spec {
	return func(x supervisor.Exit) proc.Spec {
		code := x.Code
		if x.Signal != 0 {
			code = signalled
		}
		argv := []string{"./" + s6.FinishFile, strconv.Itoa(code), strconv.Itoa(x.Signal), name, strconv.Itoa(x.PID)}
		return proc.Spec{Argv: argv, Env: run.Env, Dir: run.Dir, Cred: run.Cred}
	}
}
