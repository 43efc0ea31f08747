package scandir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/backoff"
	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/s6"
	"hinit/supervisor"
)

const (
	restartDelay = time.Second // between the end of one run, finish included, and the next
	spawnRetry   = time.Minute // for a run that can't be spawned
	readyEnough  = time.Second // a run that was ready for so long is started again at once
	endingPoll   = 100 * time.Millisecond
	killGrace    = 10 * time.Second // of a policy that needs one though it never kills
	permanent    = 125              // exit code of a finish program that wants no restart
	signalled    = 256              // what a finish program gets for the exit code of a run that a signal ended
)

// pair is a foreign service, with its logger when it has one. It belongs to the scanner's goroutine.
type pair struct {
	name    string
	service *place
	logger  *Slot  // nil without
	logs    *place // of the logger
	pipe    pipe   // from the service to the logger; open as long as there is a logger
	leaving bool   // its directory is gone; the service is on its way out
}

// pipe is kept open on both ends, so that neither the service nor its logger notices when the other is started again.
type pipe struct{ r, w *os.File }

func (p *pipe) open() (err error) {
	if p.r == nil {
		p.r, p.w, err = os.Pipe()
	}
	return err
}

// close ends the logger's input once the service has ended.
func (p *pipe) close() {
	if p.r != nil {
		_ = errors.Join(p.r.Close(), p.w.Close()) // nothing was written here
		*p = pipe{}
	}
}

// place is one directory that defines a service, opened.
type place struct {
	dir  *fsutil.Dir // as who runs it
	id   fileID
	root bool     // it is run as root
	link bool     // path is a link to it
	pin  *os.File // of a root's one: what it is run from, whatever its name means by then
	path string   // as the scan directory has it
	last s6.Definition
	said string // what was last complained about
}

func (p *place) close() {
	if p == nil {
		return
	}
	if p.dir != nil { // a successor may not have come to open it
		_ = p.dir.Close() // a directory
	}
	// The unit is run from the pin, as root and by its number, as long as the supervisor has it: the finish program of a
	// logger comes after this. The last who knows the pin closes it, which is the garbage collector.
	p.pin = nil
}

func (p *pair) close() {
	p.service.close()
	p.logs.close()
	p.pipe.close()
}

// takeForeign takes in a directory that defines a service.
func (s *Scanner) takeForeign(name string, link bool) error {
	service, err := s.openPlace(filepath.Join(s.ground.Scan, name), link)
	if err != nil {
		return err
	}
	slot := &Slot{Name: name, Dir: service.path, kind: foreign, id: service.id, dir: service.dir}
	if link {
		info, err := s.dir.Lstat(name)
		if err != nil {
			service.close()
			return err
		}
		slot.link = idOf(info)
	}
	p := s.pairs[name]
	if p == nil {
		p = &pair{name: name}
		s.pairs[name] = p
	}
	// The one before it may not have left yet; then its pipe goes on.
	p.service.close()
	p.logs.close()
	p.service, p.logs, p.leaving = service, nil, false
	if service.counts() {
		_ = service.dir.Remove(s6.TallyFile) // of another supervisor, if there is one
	}
	slot.pair = p
	s.slots[name] = slot
	s.watch(service.path)
	s.publish() // who takes over must know of the directory before the supervisor knows of the service
	s.define(p, slot, true)
	return nil
}

// openPlace opens a service directory and decides as whom it is run. Through a link it is opened as the agent's user, who
// has made the link or could have.
func (s *Scanner) openPlace(path string, link bool) (*place, error) {
	p := &place{path: path, link: link}
	var err error
	if !link && s.ground.Agent.Switches() {
		if p.dir, p.pin, err = s.rootOwned(path); err != nil {
			return nil, err
		}
		p.root = p.dir != nil
	}
	if p.dir == nil {
		if link {
			p.dir, err = fsutil.OpenDir(path, s.ground.foreign)
		} else {
			p.dir, err = fsutil.OpenReal(path, s.ground.foreign)
		}
		if err != nil {
			return nil, err
		}
	}
	info, err := p.dir.Lstat("")
	if err != nil {
		p.close()
		return nil, err
	}
	p.id = idOf(info)
	return p, nil
}

// holds refuses a logger's directory that is not the one in the open directory of its service: between the two openings
// another service may have been given the name, and root's would get its logger.
func (p *place) holds(logs *place) error {
	if p.dir == nil {
		return errors.New("its service's directory is not open")
	}
	info, err := p.dir.Lstat(s6.LogDir)
	if err == nil && idOf(info) != logs.id {
		err = errors.New("it was replaced while it was looked at")
	}
	return err
}

// rootOwned opens a service directory as root when nobody but root can have written it: it is run from the open directory,
// so that nobody can put another into its place. Otherwise it returns none.
func (s *Scanner) rootOwned(path string) (*fsutil.Dir, *os.File, error) {
	d, err := fsutil.OpenReal(path, fsutil.Self().In(blocking.Foreign))
	if err != nil {
		return nil, nil, err
	}
	if what, owned := others(d); what != "" {
		if owned {
			s.host.Say("%s: it is not run as root, because %s; only a directory that root alone can write is", path, what)
		}
		return nil, nil, d.Close()
	}
	var pin *os.File
	err = blocking.Do(blocking.Foreign, func() (err error) {
		pin, err = os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(err, d.Close())
	}
	mine, err1 := d.Lstat("")
	pinned, err2 := pin.Stat()
	if err := errors.Join(err1, err2); err != nil || idOf(mine) != idOf(pinned) {
		return nil, nil, errors.Join(errors.New("it was replaced while it was looked at"), err, d.Close(), pin.Close())
	}
	return d, pin, nil
}

// refresh reads definitions again, and judges again as whom they are run. What is different counts from the next start.
func (s *Scanner) refresh(p *pair) {
	slot := s.slots[p.name]
	if slot == nil || slot.pair != p || p.leaving || p.service.dir == nil {
		return
	}
	if p.logs != nil {
		if next := s.rejudge(p.logs); next != nil {
			p.logs = next
		}
	}
	next := s.rejudge(p.service)
	if next != nil {
		p.service = next
		moved := *slot
		moved.dir = next.dir
		slot = &moved
	}
	s.define(p, slot, next != nil)
}

// pairOf returns the pair that a service or its logger belongs to.
func (s *Scanner) pairOf(name string) *pair {
	if dir, base := filepath.Split(name); dir != "" && base == s6.LogDir {
		name = filepath.Clean(dir)
	}
	return s.pairs[name]
}

// define makes the supervisor know a service and its logger as their directories define them now.
func (s *Scanner) define(p *pair, slot *Slot, first bool) {
	def := s6.ReadDefinition(p.service.dir)
	had := p.logger
	if def.Logger {
		s.defineLogger(p)
	}
	if first || had != p.logger || !reflect.DeepEqual(def, p.service.last) {
		s.complain(p.name, p.service, def)
		mended := !first && p.service.last.Broken != "" && def.Broken == ""
		p.service.last = def
		next := *slot
		next.definition = def
		s.slots[p.name] = &next
		u := s.unit(p.name, p.service, def)
		if def.Logger && p.logger != nil {
			u.Stdout = p.pipe.w
		}
		s.register(u, def.Down, mended)
		s.publish()
	}
	if !def.Logger && p.logger != nil { // not before the service has another way out
		s.dropLogger(p)
		s.publish()
	}
}

// defineLogger does the same for the logger.
func (s *Scanner) defineLogger(p *pair) {
	if p.logs == nil {
		logs, err := s.openPlace(filepath.Join(p.service.path, s6.LogDir), false)
		if err == nil {
			err = p.service.holds(logs)
		}
		if err == nil {
			err = p.pipe.open()
		}
		if err != nil {
			logs.close()
			s.host.Say("%s: cannot use its logger: %v", p.name, err)
			return
		}
		p.logs = logs
		s.watch(logs.path)
	}
	if p.logs.dir == nil {
		return // a successor could not open it; what runs goes on
	}
	def := s6.ReadDefinition(p.logs.dir)
	if p.logger != nil && p.logger.id == p.logs.id && reflect.DeepEqual(def, p.logs.last) {
		return
	}
	name := p.name + "/" + s6.LogDir
	s.complain(name, p.logs, def)
	mended := p.logger != nil && p.logs.last.Broken != "" && def.Broken == ""
	p.logs.last = def
	p.logger = &Slot{Name: name, Dir: p.logs.path, kind: foreign, id: p.logs.id, dir: p.logs.dir, definition: def, pair: p}
	u := s.unit(name, p.logs, def)
	u.Stdin, u.Policy.Drains = p.pipe.r, true
	s.publish()
	s.register(u, def.Down, mended)
}

// complain tells what is wrong with a definition, once.
func (s *Scanner) complain(name string, p *place, def s6.Definition) {
	faults := def.Warnings
	if def.Broken != "" {
		faults = append([]string{def.Broken}, faults...)
	}
	text := strings.Join(faults, "; ")
	if text != p.said && text != "" {
		s.host.Say("%s: its service directory is not in order: %s", name, text)
	}
	p.said = text
}

// register hands a unit to the supervisor. One that could not be started before and now might be is started at once.
func (s *Scanner) register(u supervisor.Unit, down, mended bool) {
	want := supervisor.WantUp
	if down {
		want = supervisor.WantDown
	}
	if err := s.host.Register(s.ctx, u, want); err != nil {
		s.host.Say("cannot supervise %s: %v", u.Name, err)
		return
	}
	v := s.host.Snapshot().Find(u.Name)
	if mended && v != nil && v.Want == supervisor.WantUp && v.State == supervisor.Backoff && v.LastExit != nil && v.LastExit.Cause == supervisor.CauseSpawn {
		_ = s.host.Do(s.ctx, supervisor.Start{Name: u.Name}) // else its time comes anyway
	}
}

// pinned begins the directory of a service that root runs: a descriptor, which nobody can move another directory to.
const pinned = "/proc/self/fd/"

// unit is a service as its directory defines it, with the rules of s6.
func (s *Scanner) unit(name string, p *place, def s6.Definition) supervisor.Unit {
	cred, env := s.host.Identity(p.root)
	dir, pin := p.path, p.pin
	if pin != nil {
		dir = pinned + strconv.Itoa(int(pin.Fd()))
	}
	run := proc.Spec{Argv: []string{"./" + s6.RunFile, name}, Env: env, Dir: dir, Cred: cred}
	policy := supervisor.Policy{
		Backoff:    backoff.Policy{Initial: restartDelay, Max: restartDelay, Factor: 1},
		SpawnRetry: spawnRetry,
		StopSignal: def.DownSignal, Grace: def.KillTimeout, KillNever: def.KillTimeout == 0, Kill: supervisor.ScopeMain, Spare: true,
		Finish: true, FinishTimeout: def.FinishTimeout, PermanentFinish: []int{permanent},
		Announces: def.NotifyFD != 0,
	}
	if policy.KillNever {
		policy.Grace = killGrace
	}
	if policy.Announces {
		policy.ReadyRestart = readyEnough // else nobody knows, however long it lives
	}
	if def.KillGroup {
		policy.Kill = supervisor.ScopeGroup
	}
	finish := Finish(name, run)
	return supervisor.Unit{
		Name: name, Kind: supervisor.KindService, Policy: policy, NotifyFD: def.NotifyFD,
		Spec: run,
		Finish: func(x supervisor.Exit) proc.Spec {
			runtime.KeepAlive(pin) // the unit holds it, so the number in dir means nothing else
			return finish(x)
		},
	}
}

// watch asks for notifications about a directory. Without, the poll finds what changes.
func (s *Scanner) watch(path string) {
	if s.hints != nil {
		_ = blocking.Do(blocking.Foreign, func() error { return s.hints.Add(path) })
	}
}

// leave ends a service whose directory is gone: it gets its down signal, and when it has ended its logger reads the end of
// its input.
func (s *Scanner) leave(p *pair) {
	p.leaving = true
	if s.hints != nil {
		_ = s.hints.Remove(p.service.path) // it is gone already, most likely
	}
	if err := s.host.Do(s.ctx, supervisor.Remove{Name: p.name}); errors.Is(err, supervisor.ErrUnknown) {
		s.left(p)
	}
}

// left is called when the service of a pair is forgotten.
func (s *Scanner) left(p *pair) {
	s.dropLogger(p)
	p.service.close()
	delete(s.pairs, p.name)
	s.publish()
}

// dropLogger ends a logger: it gets to read everything, then the end of its input, and is not started again.
func (s *Scanner) dropLogger(p *pair) {
	if p.logger == nil {
		return
	}
	name := p.logger.Name
	_ = s.host.Do(s.ctx, supervisor.Unwant{Name: name}) // it may be gone already
	if s.hints != nil {
		_ = s.hints.Remove(p.logs.path) // nothing tells of it when the directory around it was moved away
	}
	p.pipe.close()
	p.logs.close()
	p.logger, p.logs = nil, nil
	s.ending[name] = time.Now().Add(loggerTime)
	s.endLogger(name)
}

// endLogger forgets a logger that has ended, or whose time to end by itself is over.
func (s *Scanner) endLogger(name string) {
	if p := s.pairOf(name); p != nil && p.logger != nil { // there is a new one
		delete(s.ending, name)
		return
	}
	v := s.host.Snapshot().Find(name)
	down := v == nil || v.PID == 0 && v.State == supervisor.Down
	if !down && time.Now().Before(s.ending[name]) {
		s.due.Reset(endingPoll)
		return
	}
	delete(s.ending, name)
	_ = s.host.Do(s.ctx, supervisor.Remove{Name: name}) // it may be gone already
}

// Observe takes note of the supervisor's history. It does not block: a record that finds no room is made up for by the next
// look.
func (s *Scanner) Observe(r supervisor.Record) {
	if !r.Dropped && r.Exit == nil && (r.To != supervisor.Down || r.From == r.To) {
		return
	}
	top, _, _ := strings.Cut(r.Service, "/")
	if !s.table.Load().foreign[top] {
		return
	}
	select {
	case s.records <- r:
	default:
	}
}

func (s *Scanner) observe(r supervisor.Record) {
	p := s.pairOf(r.Service)
	switch {
	case p == nil:
		return
	case r.Dropped && r.Service == p.name && p.leaving:
		s.left(p)
	case r.Exit != nil:
		s.refresh(p) // first: it may have been root's until now
		s.bury(p, r)
	}
}

// bury counts a death where the tools of s6 look for it. That is for people only, so nothing depends on it, and what can't be
// written is not counted.
func (s *Scanner) bury(p *pair, r supervisor.Record) {
	at := p.service
	if r.Service != p.name {
		at = p.logs
	}
	if at == nil || at.dir == nil || at.last.Tally == 0 || r.Exit.PID == 0 || !at.counts() {
		return
	}
	tally, err := at.dir.ReadFile(s6.TallyFile, s6.MaxTallyFile)
	if errors.Is(err, fs.ErrNotExist) {
		_ = at.dir.Mkdir(filepath.Dir(s6.TallyFile), 0o755) // it may be there, which Replace will tell
	} else if err != nil {
		return
	}
	death := s6.DeathOf(r.Exit.At, r.Exit.Code, r.Exit.Signal)
	_ = at.dir.Replace(s6.TallyFile, s6.Bury(tally, death, at.last.Tally), fsutil.ReplaceOptions{Mode: 0o644, Volatile: true}) // see above
}

// counts says whether deaths may be counted in a place. As root only where nobody else can have a say in what is there: other
// than what is run, supervise may be the agent's in a directory that is run as root.
func (p *place) counts() bool {
	if !p.root {
		return true
	}
	for _, name := range []string{"", filepath.Dir(s6.TallyFile)} {
		info, err := p.dir.Lstat(name)
		if name != "" && errors.Is(err, fs.ErrNotExist) {
			continue // it will be root's
		}
		if err != nil || another(info) != "" {
			return false
		}
	}
	return true
}

// settle ends what should have ended by now: services that are forgotten without a word, and loggers that are down.
func (s *Scanner) settle() {
	snap := s.host.Snapshot()
	for _, p := range s.pairs {
		if p.leaving && snap.Find(p.name) == nil {
			s.left(p)
		}
	}
	for name := range s.ending {
		s.endLogger(name)
	}
}

// String tells where a slot is, for messages.
func (s *Slot) String() string { return fmt.Sprintf("%s (%s)", s.Name, s.Dir) }
