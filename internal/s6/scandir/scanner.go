package scandir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/s6"
	"hinit/profiles"
	"hinit/supervisor"
)

// ErrUnknown says that a directory is none that is supervised.
var ErrUnknown = errors.New("no such slot")

// errGone says that the scanner has ended.
var errGone = errors.New("the scanner has ended")

// MainHermes is the slot of the container's CMD in the image that s6 ran. It answers and does nothing.
const MainHermes = "main-hermes"

const (
	maxServices = 1000
	makingTime  = 5 * time.Second       // that somebody may take to make a slot
	makingLimit = 3 * makingTime        // also when the name they use for it is renewed all the time
	maxScans    = 128                   // that wait for one
	loggerTime  = 5 * time.Second       // for a logger whose service is gone to end by itself
	idlePoll    = time.Minute           // where notifications work
	busyPoll    = 5 * time.Second       // where they do not
	settleTime  = 50 * time.Millisecond // from a notification to the look it causes
	lookAgain   = time.Second           // between two looks that notifications cause
)

// Host is the hinit around a scan directory. The scanner's goroutine calls it; what it does may block.
type Host interface {
	// Gateway makes the gateway of a profile known whose slot somebody has registered, and starts it if start says so. exports
	// is what the slot's run exports beside the container's environment.
	Gateway(ctx context.Context, profile string, start bool, exports map[string]string) error
	// Unregistered is told that the slot of a service of hinit's own is gone although nobody withdrew it.
	Unregistered(ctx context.Context, service string)
	// Reserved says why no directory may have a name, "" when it may.
	Reserved(name string) string
	// Room says why there is no room for another service, nil when there is.
	Room() error
	// Register, Do and Snapshot are those of the supervisor; Register makes a log as well.
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
	// Identity is who runs a directory that is not root's, and with what environment; or root's own, without what the
	// agent could have put into it.
	Identity(root bool) (cred *proc.Cred, env []string)
	// Say writes a line for people.
	Say(format string, args ...any)
}

// kind is what a slot is.
type kind int

const (
	native  kind = iota // a service that hinit has anyway
	fixed               // no service at all: it answers as up
	foreign             // a directory that defines its service
)

// Slot is one directory of the scan directory, or its logger. It is immutable.
type Slot struct {
	Name string // of the service
	Dir  string // absolute path, as the scan directory has it

	kind       kind
	id         fileID      // of the directory
	link       fileID      // of the name, when that is a symbolic link
	dir        *fsutil.Dir // the open directory, as who may read it
	definition s6.Definition
	pair       *pair             // of a foreign one
	exports    map[string]string // by run, of a gateway that somebody has registered
}

// Native says that hinit has the service anyway: a gateway or a service of hinit.yaml.
func (s *Slot) Native() bool { return s.kind == native }

// Fixed says that there is no service: the slot answers as up and takes no command.
func (s *Slot) Fixed() bool { return s.kind == fixed }

// ReloadSignal is the signal that asks the service to read its configuration anew.
func (s *Slot) ReloadSignal() int {
	if s.kind == foreign {
		return s.definition.ReloadSignal
	}
	return int(syscall.SIGHUP)
}

// NormallyUp says whether it starts by itself. It blocks on the file system of the scan directory.
func (s *Slot) NormallyUp() bool {
	if s.dir == nil {
		return true
	}
	_, err := s.dir.Lstat(s6.DownFile)
	return errors.Is(err, fs.ErrNotExist)
}

// SetDown makes or removes the down file. It blocks on the file system of the scan directory.
func (s *Slot) SetDown(down bool) error {
	if s.dir == nil || down != s.NormallyUp() {
		return nil
	}
	if down {
		_, err := s.dir.Append(s6.DownFile, nil, 0o644)
		return err
	}
	if err := s.dir.Remove(s6.DownFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type fileID struct{ dev, ino uint64 }

func idOf(info fs.FileInfo) fileID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}
	}
	return fileID{st.Dev, st.Ino}
}

// table is what readers see: all slots and, apart, those beneath them, by name and by directory.
type table struct {
	byName map[string]*Slot
	byID   map[fileID]*Slot
	sorted []*Slot
	// foreign are the names of the foreign services, those on their way out too.
	foreign map[string]bool
	kept    kept
}

// Scanner keeps the scan directory and the supervisor in step.
type Scanner struct {
	host     Host
	ground   Ground
	dir      *fsutil.Dir
	lock     *os.File
	requests chan func()
	scans    chan chan struct{}
	records  chan supervisor.Record
	ended    chan struct{}
	resumed  chan struct{} // of a successor
	table    atomic.Pointer[table]
	pending  atomic.Bool // a look at what is gone is due

	// All below belongs to the goroutine.
	ctx     context.Context //nolint:containedctx // the life of the goroutine
	slots   map[string]*Slot
	pairs   map[string]*pair     // of foreign slots, those that are leaving too
	ending  map[string]time.Time // loggers whose service is gone, and when their time is over
	later   map[string]postponed // slots that are to be made when nobody else is about to
	refused map[string]fileID    // directories that were complained about, by name; a tenth of the services at most
	making  map[string]time.Time // slots that somebody else is making, and since when
	crowd   string               // what was last complained about on the whole
	hints   *fsnotify.Watcher
	due     *time.Timer
	poll    time.Duration
	hinted  bool      // due was moved because of a notification
	looked  time.Time // when the last look was
}

// Open wipes and makes the directories and begins to work. It ends with ctx.
func Open(ctx context.Context, host Host, ground Ground) (*Scanner, error) {
	dir, lock, err := ground.prepare()
	if err != nil {
		return nil, err
	}
	s := newScanner(host, ground, dir, lock)
	s.ctx = ctx
	s.publish()
	s.observeFiles()
	s.due.Reset(s.poll)
	guard.Go("scanning for services", s.run)
	return s, nil
}

// newScanner makes a scanner that does not work yet.
func newScanner(host Host, ground Ground, dir *fsutil.Dir, lock *os.File) *Scanner {
	if ground.most == 0 {
		ground.most = maxServices
	}
	return &Scanner{
		host: host, ground: ground, dir: dir, lock: lock, requests: make(chan func()), scans: make(chan chan struct{}, maxScans),
		records: make(chan supervisor.Record, 1024), ended: make(chan struct{}),
		slots: make(map[string]*Slot), pairs: make(map[string]*pair), refused: make(map[string]fileID),
		ending: make(map[string]time.Time), later: make(map[string]postponed), making: make(map[string]time.Time),
		due: time.NewTimer(time.Hour), poll: busyPoll,
	}
}

// observeFiles begins to wait for notifications. Without them it polls more often.
func (s *Scanner) observeFiles() {
	hints, err := fsnotify.NewWatcher()
	if err != nil {
		return
	}
	s.hints = hints
	if hints.Add(s.ground.Scan) == nil {
		s.poll = idlePoll
	}
}

// Ended is closed when the scanner's goroutine has ended.
func (s *Scanner) Ended() <-chan struct{} { return s.ended }

// run is the goroutine.
func (s *Scanner) run() {
	defer close(s.ended)
	s.work()
	s.end() // not after a panic: another image goes on with the files
}

func (s *Scanner) work() {
	var changes chan fsnotify.Event
	var lost chan error
	if s.hints != nil {
		changes, lost = s.hints.Events, s.hints.Errors
	}
	for {
		select {
		case <-s.ctx.Done():
			return
		case f := <-s.requests:
			f()
		case done := <-s.scans:
			s.scan(done)
		case r := <-s.records:
			s.observe(r)
		case ev, ok := <-changes:
			if !ok {
				changes, s.poll = nil, busyPoll
			} else if s.matters(ev) {
				s.soon()
			}
		case _, ok := <-lost:
			if !ok {
				lost = nil
			}
			s.soon()
		case <-s.due.C:
			s.hinted = false
			s.due.Reset(s.poll)
			s.look()
		}
	}
}

// soon makes the next look come soon, but not right after the last one.
func (s *Scanner) soon() {
	if !s.hinted {
		s.hinted = true
		s.due.Reset(max(settleTime, time.Until(s.looked.Add(lookAgain))))
	}
}

// matters says whether a notification is worth a look. Most are not: registering makes temporary names, and services write
// into their directories.
func (s *Scanner) matters(ev fsnotify.Event) bool {
	dir, name := filepath.Split(ev.Name)
	if filepath.Clean(dir) == s.ground.Scan {
		return s.slots[name] != nil // somebody's new directory waits for a scan
	}
	return s6.Defines(name)
}

func (s *Scanner) end() {
	if s.hints != nil {
		_ = s.hints.Close() // nothing is read from it any more
	}
	s.due.Stop()
	for _, p := range s.pairs {
		p.close()
	}
	for _, slot := range s.slots {
		slot.close()
	}
	_ = s.dir.Close()  // a directory
	_ = s.lock.Close() // it ends the lock
}

func (s *Slot) close() {
	if s.dir != nil {
		_ = s.dir.Close() // it may be closed already
	}
}

// do runs f in the goroutine and waits for it.
func (s *Scanner) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case s.requests <- func() { defer close(done); f() }:
	case <-ctx.Done():
		return fmt.Errorf("cannot reach the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
	return s.wait(ctx, done)
}

func (s *Scanner) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot get an answer of the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
}

// publish shows readers what there is now.
func (s *Scanner) publish() {
	t := &table{
		byName: make(map[string]*Slot, len(s.slots)), byID: make(map[fileID]*Slot, len(s.slots)),
		foreign: make(map[string]bool, len(s.pairs)), kept: s.keep(),
	}
	for name := range s.pairs {
		t.foreign[name] = true
	}
	for _, slot := range s.slots {
		t.add(slot)
		if p := slot.pair; p != nil && p.logger != nil {
			t.add(p.logger)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.byName)) {
		t.sorted = append(t.sorted, t.byName[name])
	}
	s.table.Store(t)
}

func (t *table) add(slot *Slot) {
	t.byName[slot.Name] = slot
	t.byID[slot.id] = slot
}

// Slots returns all slots in the order of their names. It does not block.
func (s *Scanner) Slots() []*Slot { return s.table.Load().sorted }

// Has says whether there is a slot of that name. It does not block.
func (s *Scanner) Has(name string) bool { return s.table.Load().byName[name] != nil }

// Exports returns what the run of a gateway exports that somebody has registered, nil for any other service. It does not
// block. The map must not be changed.
func (s *Scanner) Exports(name string) map[string]string {
	if slot := s.table.Load().byName[name]; slot != nil {
		return slot.exports
	}
	return nil
}

// Foreign says whether a directory that somebody else has made defines a service of that name. It does not block.
func (s *Scanner) Foreign(name string) bool { return s.table.Load().foreign[name] }

// Find returns the slot of a service directory, which may be reached through links; path is absolute. The error wraps
// [ErrUnknown] when there is none. It blocks on the file system as the agent's user.
func (s *Scanner) Find(path string) (*Slot, error) {
	path = filepath.Clean(path)
	t := s.table.Load()
	name, lexical := strings.CutPrefix(path, s.ground.Scan+"/")
	if lexical {
		if slot := t.byName[name]; slot != nil {
			return slot, s.present(slot)
		}
	}
	if parent := t.byName[filepath.Dir(name)]; lexical && parent != nil && filepath.Base(name) == s6.LogDir && parent.kind == native {
		return loggerOf(parent), s.present(parent)
	}
	d, err := fsutil.OpenDir(path, s.ground.Agent)
	if err != nil {
		return nil, fmt.Errorf("%w at %q", ErrUnknown, path)
	}
	defer d.Close()
	info, err := d.Lstat("")
	if err != nil {
		return nil, fmt.Errorf("%w at %q", ErrUnknown, path)
	}
	if slot := t.byID[idOf(info)]; slot != nil {
		return slot, s.present(slot)
	}
	if filepath.Base(path) == s6.LogDir {
		if parent, err := s.Find(filepath.Dir(path)); err == nil && parent.kind == native {
			return loggerOf(parent), nil
		}
	}
	return nil, fmt.Errorf("%w at %q", ErrUnknown, path)
}

// loggerOf is the logger of a service whose log hinit writes itself.
func loggerOf(slot *Slot) *Slot {
	return &Slot{Name: slot.Name + "/" + s6.LogDir, Dir: slot.Dir + "/" + s6.LogDir, kind: fixed}
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
	if lost := s.do(ctx, func() { err = s.make(name, k, files, down) }); lost != nil {
		return lost
	}
	if err != nil {
		return fmt.Errorf("cannot make the slot of %s: %w", name, err)
	}
	return nil
}

func (s *Scanner) make(name string, k kind, files Files, down bool) error {
	if old := s.slots[name]; old != nil {
		if old.kind == foreign {
			return errors.New("a directory of that name defines another service; remove it")
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
	if err != nil {
		return err
	}
	s.publish()
	return nil
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
	if err := s.dir.RemoveAll(hidden); err != nil {
		return err
	}
	if err := s.dir.MakeTree(hidden, 0o755, files.nodes(down)); err != nil {
		return err
	}
	_, err := s.dir.Lstat(name)
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
}

func (s *Scanner) postpone(name string, k kind, files Files, down bool) {
	s.later[name] = postponed{k, files, down}
	s.due.Reset(endingPoll)
}

// catchUp makes what was postponed.
func (s *Scanner) catchUp() {
	later := maps.Clone(s.later)
	clear(s.later)
	for name, p := range later {
		if err := s.make(name, p.kind, p.files, p.down); err != nil {
			s.host.Say("cannot make the slot of %s: %v", name, err)
		}
	}
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
	slot := s.table.Load().byName[name]
	if slot == nil {
		return nil
	}
	if err := slot.SetDown(down); err != nil && !errors.Is(err, fs.ErrClosed) && !errors.Is(err, fs.ErrNotExist) { // it has just gone
		return fmt.Errorf("cannot change the down file of %s: %w", name, err)
	}
	return nil
}

// Scan looks at everything: new directories are supervised when it returns, and those that are gone are told to end.
func (s *Scanner) Scan(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case s.scans <- done:
	case <-ctx.Done():
		return fmt.Errorf("cannot reach the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
	return s.wait(ctx, done)
}

// scan is one scan for everybody who has asked by now.
func (s *Scanner) scan(first chan struct{}) {
	waiting := []chan struct{}{first}
	for more := true; more; {
		select {
		case done := <-s.scans:
			waiting = append(waiting, done)
		default:
			more = false
		}
	}
	s.look()
	s.find()
	for _, done := range waiting {
		close(done)
	}
}

// Prune looks at what is gone and leaves what is new alone.
func (s *Scanner) Prune(ctx context.Context) error { return s.do(ctx, s.look) }

// Refresh reads the definition of a foreign slot again, for its next start. It does nothing for others.
func (s *Scanner) Refresh(ctx context.Context, name string) error {
	return s.do(ctx, func() {
		if p := s.pairOf(name); p != nil {
			s.refresh(p)
		}
	})
}

// look finds what is gone, and what of the others has changed.
func (s *Scanner) look() {
	s.pending.Store(false)
	s.looked = time.Now()
	gone := false
	for _, name := range slices.Sorted(maps.Keys(s.slots)) {
		slot := s.slots[name]
		switch {
		case !s.same(slot):
			gone = true
			s.forget(slot)
			s.lost(slot)
		case slot.kind == foreign:
			s.refresh(slot.pair)
		}
	}
	s.settle()
	s.catchUp()
	for name, id := range s.refused { // so that it is complained about again when it comes back
		if info, err := s.dir.Lstat(name); err != nil || idOf(info) != id {
			delete(s.refused, name)
		}
	}
	if gone {
		s.publish()
	}
}

// lost ends what a slot that is gone stood for.
func (s *Scanner) lost(slot *Slot) {
	switch slot.kind {
	case native:
		s.host.Unregistered(s.ctx, slot.Name)
	case foreign:
		s.host.Say("%s: its service directory is gone", slot.Name)
		s.leave(slot.pair)
	case fixed:
	}
}

// find takes in directories that are new. However many somebody has put there, it looks at so many names and complains about
// so many directories, and has one word about the rest.
func (s *Scanner) find() {
	names, refused := 16*s.ground.most, s.ground.most/10
	entries, more, err := s.dir.ReadSome("", names)
	if err != nil {
		s.host.Say("cannot scan for services: %v", err)
		return
	}
	crowd := ""
	if more {
		crowd = fmt.Sprintf("it holds more than %d names, and hinit looks at no more", names)
	}
	for _, e := range entries {
		if skipped(e.Name()) || !e.IsDir() && e.Type()&fs.ModeSymlink == 0 || s.slots[e.Name()] != nil {
			continue
		}
		if why := s.full(); why != "" {
			crowd = why
			break
		}
		if err := s.take(e.Name(), !e.IsDir()); err != nil && !s.refuse(e, err, refused) {
			crowd = fmt.Sprintf("more than %d directories in it are not in order", refused)
			break
		}
	}
	if crowd != s.crowd && crowd != "" {
		s.host.Say("not all of the scan directory %q is supervised: %s", s.ground.Scan, crowd)
	}
	s.crowd = crowd
	s.publish()
}

// full says why there is no room for another service, "" when there is.
func (s *Scanner) full() string {
	services := len(s.slots) + len(s.ending)
	for _, p := range s.pairs {
		if p.leaving {
			services++ // it is still there, and may be for as long as it likes
		}
	}
	if services >= s.ground.most {
		return fmt.Sprintf("there are %d services already", services)
	}
	if err := s.host.Room(); err != nil {
		return err.Error()
	}
	return ""
}

// skipped says whether a name is none of a service. The agent makes gateway-NAME.tmp on its way to gateway-NAME.
func skipped(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "gateway-") && strings.HasSuffix(name, ".tmp")
}

// refuse complains about a directory, once as long as it is the same. It returns false when there were too many.
func (s *Scanner) refuse(e fs.DirEntry, why error, most int) bool {
	name := e.Name()
	if len(name) > s6.MaxName {
		name = name[:s6.MaxName]
	}
	info, err := e.Info()
	if err != nil {
		return true // it is gone
	}
	id := idOf(info)
	if s.refused[e.Name()] == id {
		return true
	}
	if len(s.refused) >= most {
		return false
	}
	s.refused[e.Name()] = id
	s.host.Say("cannot supervise the service directory %q: %v", name, why)
	return true
}

// take takes in one directory.
func (s *Scanner) take(name string, link bool) error {
	if len(name) > s6.MaxName {
		return fmt.Errorf("its name is longer than %d characters", s6.MaxName)
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		if link {
			return errors.New("the slot of a gateway has to be a directory, not a link")
		}
		return s.takeGateway(name, profile)
	}
	if why := s.host.Reserved(name); why != "" && s.pairs[name] == nil {
		return errors.New(why)
	}
	return s.takeForeign(name, link)
}

// takeGateway takes in a slot that the agent has registered. Its scripts say what hinit does anyway, but for what run exports.
func (s *Scanner) takeGateway(name, profile string) error {
	slot, err := s.open(name, native)
	if err != nil {
		return err
	}
	if slot.exports, err = s.exportsOf(slot); err != nil {
		slot.close()
		return err
	}
	s.slots[name] = slot
	s.publish() // who else registers the gateway now has to know what its slot exports
	if err := s.host.Gateway(s.ctx, profile, slot.NormallyUp(), slot.exports); err != nil {
		s.forget(slot)
		s.publish()
		return err
	}
	return nil
}

// maxRun is how long the run of a gateway may be.
const maxRun = 64 << 10

// exportsOf reads the run of a slot. One that can't be read or understood is said and changes nothing: it is not executed.
func (s *Scanner) exportsOf(slot *Slot) (map[string]string, error) {
	script, err := slot.dir.ReadFile(s6.RunFile, maxRun)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("it has no run")
	case err != nil:
		s.host.Say("%s: what its run exports is not taken over: %v", slot.Name, err)
		return nil, nil //nolint:nilerr // the gateway runs without
	}
	exports, unclear := s6.Exports(script)
	if len(unclear) > 0 {
		s.host.Say("%s: its run exports %s with words that only a shell understands, so they are not taken over; write the values themselves",
			slot.Name, strings.Join(unclear, " "))
	}
	return exports, nil
}
