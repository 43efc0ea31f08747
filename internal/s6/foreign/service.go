package foreign

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/s6/formats"
	"hinit/supervisor"
)

const (
	loggerTime = 5 * time.Second        // time for a logger without a service to end by itself
	loggerPoll = 100 * time.Millisecond // between two checks whether the logger has ended
)

// Supervisor is the part of PID 1 that a Service uses.
type Supervisor interface {
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
	// Identity returns the user, environment and directory of a service: as root, without anything from the agent, or as the
	// agent.
	Identity(root bool) proc.Spec
	Say(format string, args ...any)
}

// Scanner is the part of the scanner that a Service uses.
type Scanner interface {
	Supervisor
	// Publish shows readers the present state.
	Publish()
	Watch(path string)
	Unwatch(path string)
	// LookIn makes the scanner check all directories after a while.
	LookIn(d time.Duration)
	// Agent returns a context that ends with the scanner, and the agent's user.
	Agent() (context.Context, *fsutil.Actor)
}

// Service is a service whose directory another program made, with its logger. The fields without a tag pass through re-execution.
type Service struct {
	Name    string
	Main    Place  `reexec:"Service"`
	Logs    *Place `reexec:"Logger"` // the logger, nil for none
	Read    *os.File
	Write   *os.File // the pipe from the service to the logger; open while the logger exists
	Leaving bool     // the directory is gone, and the service is ending
	Left    bool     `reexec:"-"` // after Leaving: the supervisor has forgotten the service
	// LoggerEnds is the time at which a logger without a service is removed. Zero means that no such logger exists.
	LoggerEnds time.Time `reexec:"-"`

	scanner Scanner `reexec:"-"`
}

// New returns a service without a directory.
func New(scanner Scanner, name string) *Service {
	return &Service{Name: name, Left: true, scanner: scanner}
}

// Copy returns a copy for readers.
func (s *Service) Copy() *Service {
	c := *s
	if s.Logs != nil {
		c.Logs = new(*s.Logs)
	}
	return &c
}

// Gone reports whether both the service and its logger are gone.
func (s *Service) Gone() bool { return s.Left && s.LoggerEnds.IsZero() }

// Close closes all files of the service.
func (s *Service) Close() {
	s.Main.close()
	s.Logs.close()
	s.closePipe()
}

func (s *Service) openPipe() (err error) {
	if s.Read == nil {
		s.Read, s.Write, err = os.Pipe()
	}
	return err
}

func (s *Service) closePipe() {
	if s.Read != nil {
		_ = errors.Join(s.Read.Close(), s.Write.Close()) // errors don't matter, because this process has written nothing here
		s.Read, s.Write = nil, nil
	}
}

// Take gives the service a directory; link says that path is a symbolic link. Call Begin next. If the service of the previous
// directory has not ended yet, the new service uses the same pipe.
func (s *Service) Take(path string, link bool) error {
	main, err := s.open(path, link)
	if err != nil {
		return err
	}
	s.Main.close()
	s.Logs.close()
	s.Main, s.Logs, s.Leaving, s.Left = *main, nil, false, false
	if s.Main.mayRecordDeaths() {
		_ = s.Main.dir.Remove(formats.TallyFile) // another supervisor may have left the file
	}
	return nil
}

// Begin registers the service with the supervisor.
func (s *Service) Begin() {
	s.scanner.Watch(s.Main.Path)
	s.define()
}

// Refresh reads the definitions again and repeats the ownership check. Changes take effect at the next start.
func (s *Service) Refresh() {
	if s.Leaving || s.Left || s.Main.dir == nil {
		return
	}
	if s.Logs != nil {
		if next := s.reopened(s.Logs); next != nil {
			s.Logs = next
		}
	}
	if next := s.reopened(&s.Main); next != nil {
		s.Main = *next
	}
	s.define()
}

// define registers a service and its logger with the present definitions in their directories.
func (s *Service) define() {
	def := formats.ReadDefinition(s.Main.dir)
	had := s.Logs
	if def.Logger {
		s.defineLogger()
	}
	if s.Main.moved || had != s.Logs || !reflect.DeepEqual(def, s.Main.Definition) {
		s.supervise(s.Name, &s.Main, def)
	}
	if !def.Logger && s.Logs != nil { // only after the service has another output
		s.dropLogger()
		s.scanner.Publish()
	}
}

func (s *Service) defineLogger() {
	logs := s.Logs
	if logs == nil {
		var err error
		logs, err = s.open(filepath.Join(s.Main.Path, formats.LogDir), false)
		if err == nil {
			err = s.Main.checkLogger(logs)
		}
		if err == nil {
			err = s.openPipe()
		}
		if err != nil {
			logs.close()
			s.scanner.Say("%s: cannot use its logger: %v", s.Name, err)
			return
		}
		s.scanner.Watch(logs.Path)
	}
	if logs.dir == nil {
		return // the directory could not be opened after re-execution; the running process continues
	}
	s.Logs = logs
	if def := formats.ReadDefinition(logs.dir); logs.moved || !reflect.DeepEqual(def, logs.Definition) {
		s.supervise(s.LoggerName(), logs, def)
	}
}

// supervise registers the service of a place. It publishes first, because re-execution must include every directory whose service
// the supervisor knows. If the last start has failed and the definition is valid again, it starts the service at once.
func (s *Service) supervise(name string, p *Place, def formats.Definition) {
	s.complain(name, p, def)
	repaired := p.Definition.Broken != "" && def.Broken == ""
	p.Definition, p.moved = def, false
	u := s.unit(name, p)
	switch {
	case p == s.Logs:
		u.Std[0], u.Policy.Drains = s.Read, true
	case def.Logger && s.Logs != nil:
		u.Std[1] = s.Write
	}
	want := supervisor.WantUp
	if def.Down {
		want = supervisor.WantDown
	}
	s.scanner.Publish()
	ctx, _ := s.scanner.Agent()
	if err := s.scanner.Register(ctx, u, want); err != nil {
		s.scanner.Say("cannot supervise %s: %v", name, err)
		return
	}
	v := s.scanner.Snapshot().Find(name)
	if repaired && v != nil && v.Want == supervisor.WantUp && v.State == supervisor.Backoff && v.LastExit != nil && v.LastExit.Cause == supervisor.CauseSpawn {
		_ = s.do(supervisor.Start{Name: name}) // the error doesn't matter: the service starts later anyway
	}
}

// LoggerName returns the name of the logger's service.
func (s *Service) LoggerName() string { return s.Name + "/" + formats.LogDir }

func (s *Service) complain(name string, p *Place, def formats.Definition) {
	faults := def.Warnings
	if def.Broken != "" {
		faults = append([]string{def.Broken}, faults...)
	}
	text := strings.Join(faults, "; ")
	if text != p.Complaint && text != "" {
		s.scanner.Say("%s: its service directory is not in order: %s", name, text)
	}
	p.Complaint = text
}

func (s *Service) do(e supervisor.Event) error {
	ctx, _ := s.scanner.Agent()
	return s.scanner.Do(ctx, e)
}

// Leave ends a service whose directory is gone. The service gets its down signal. After the end of the service the logger sees
// the end of its input.
func (s *Service) Leave() {
	s.Leaving = true
	s.Main.shut()
	s.scanner.Unwatch(s.Main.Path) // the watch is usually already gone
	if err := s.do(supervisor.Remove{Name: s.Name}); errors.Is(err, supervisor.ErrUnknown) {
		s.markLeft()
	}
}

func (s *Service) markLeft() {
	s.dropLogger()
	s.Main.close()
	s.Leaving, s.Left = false, true
	s.scanner.Publish()
}

// dropLogger ends a logger: the logger reads all input to the end and does not restart.
func (s *Service) dropLogger() {
	if s.Logs == nil {
		return
	}
	_ = s.do(supervisor.Unwant{Name: s.LoggerName()})
	s.scanner.Unwatch(s.Logs.Path) // needed after a move of the outer directory, which causes no event for this directory
	s.closePipe()
	s.Logs.close()
	s.Logs = nil
	s.LoggerEnds = time.Now().Add(loggerTime)
	s.endLogger()
}

// endLogger removes a logger that has ended or exceeded its time.
func (s *Service) endLogger() {
	if s.Logs != nil { // a new logger exists
		s.LoggerEnds = time.Time{}
		return
	}
	v := s.scanner.Snapshot().Find(s.LoggerName())
	down := v == nil || v.PID == 0 && v.State == supervisor.Down
	if !down && time.Now().Before(s.LoggerEnds) {
		s.scanner.LookIn(loggerPoll)
		return
	}
	s.LoggerEnds = time.Time{}
	_ = s.do(supervisor.Remove{Name: s.LoggerName()})
}

// Settle corrects the service if records of the supervisor were lost. It removes a service that the supervisor no longer has, and
// a logger that has ended or exceeded its time.
func (s *Service) Settle() {
	if s.Leaving && s.scanner.Snapshot().Find(s.Name) == nil {
		s.markLeft()
	}
	if !s.LoggerEnds.IsZero() {
		s.endLogger()
	}
}

// Observe handles a record of the service or its logger.
func (s *Service) Observe(r supervisor.Record) {
	switch {
	case r.Dropped && r.Service == s.Name && s.Leaving:
		s.markLeft()
	case r.Exit != nil && !s.Left:
		s.Refresh() // first, because the check may find that root no longer owns the directory
		s.countDeath(r)
	}
}

// countDeath records a death for the tools of s6. It ignores errors, because the file is only for people.
func (s *Service) countDeath(r supervisor.Record) {
	at := &s.Main
	if r.Service != s.Name {
		at = s.Logs
	}
	if at == nil || at.dir == nil || at.Definition.Tally == 0 || r.Exit.PID == 0 || !at.mayRecordDeaths() {
		return
	}
	tally, err := at.dir.ReadFile(formats.TallyFile, formats.MaxTallyFile)
	if errors.Is(err, fs.ErrNotExist) {
		_ = at.dir.Mkdir(filepath.Dir(formats.TallyFile), 0o755) // if the directory exists, this fails and Replace works
	} else if err != nil {
		return
	}
	death := formats.DeathOf(r.Exit.At, r.Exit.Code, r.Exit.Signal)
	tally = formats.AddDeath(tally, death, at.Definition.Tally)
	_ = at.dir.Replace(formats.TallyFile, tally, fsutil.ReplaceOptions{Mode: 0o644, Volatile: true}) // ignored, see above
}

// TakeOver opens the directories of a service after re-execution. link says that path is a symbolic link.
func (s *Service) TakeOver(link bool) {
	_, agent := s.scanner.Agent()
	if !s.Leaving && !s.Left {
		s.Main.reopen(link, agent)
		s.scanner.Watch(s.Main.Path)
	}
	if s.Logs != nil {
		s.Logs.reopen(false, agent)
		s.scanner.Watch(s.Logs.Path)
		s.Logs.moved = s.scanner.Snapshot().Find(s.LoggerName()) == nil // then it is registered again
	}
}

// Adopt sets the scanner of a service after re-execution. Call TakeOver next.
func (s *Service) Adopt(scanner Scanner) {
	s.scanner = scanner
	for _, p := range []*Place{&s.Main, s.Logs} {
		if p != nil {
			*p = Place{Path: p.Path, ID: p.ID, Root: p.Root, Pin: p.Pin, Complaint: p.Complaint}
		}
	}
}
