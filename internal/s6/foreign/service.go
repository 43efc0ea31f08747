package foreign

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"hinit/internal/backoff"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/s6/formats"
	"hinit/supervisor"
)

const (
	loggerEndTimeout   = 5 * time.Second        // how long a logger may take to end after its service
	loggerPollInterval = 100 * time.Millisecond // time between two checks whether the logger has ended
)

// Supervisor is the part of PID 1 that a Service needs.
type Supervisor interface {
	Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
	// ForeignSpec returns a Spec with the user, environment and directory of a service. If root is true, the service runs as root,
	// and nothing in the Spec comes from the agent. Otherwise the service runs as the agent.
	ForeignSpec(root bool) proc.Spec
	Say(format string, args ...any)
}

// Scanner is the part of a scandir.Scanner that a Service needs.
type Scanner interface {
	Supervisor
	// PublishState shows the present state of the scanner to readers in other goroutines.
	PublishState()
	Watch(path string)
	Unwatch(path string)
	// CheckAfter makes the scanner check all directories after the time d.
	CheckAfter(d time.Duration)
	// Agent returns the context of the scanner, and the agent's user.
	Agent() (context.Context, *fsutil.Actor)
}

// Service is a foreign service, with its logger: another program made its directory. A re-execution hands over all fields
// except those with the tag "-".
type Service struct {
	Name string
	// Main is the directory of the service itself.
	Main      Directory  `reexec:"Service"`
	LoggerDir *Directory `reexec:"Logger"` // directory of the logger; nil if there is none
	// Read and Write are the two ends of the pipe from the service to its logger. They are open while the service has a logger.
	Read      *os.File
	Write     *os.File
	Leaving   bool // the directory is gone, but the service has not ended
	Forgotten bool `reexec:"-"` // the service of a removed directory has ended, and the supervisor has forgotten it
	// LoggerDeadline is the time at which a logger without its service is removed even if it runs; zero otherwise.
	LoggerDeadline time.Time `reexec:"-"`

	scanner Scanner `reexec:"-"`
}

// New returns a service without a directory. Call OpenDirectory next.
func New(scanner Scanner, name string) *Service {
	return &Service{Name: name, Forgotten: true, scanner: scanner}
}

// Copy returns a copy for readers in other goroutines.
func (s *Service) Copy() *Service {
	c := *s
	if s.LoggerDir != nil {
		c.LoggerDir = new(*s.LoggerDir)
	}
	return &c
}

// HasEnded reports whether the service and its logger have ended and are forgotten.
func (s *Service) HasEnded() bool { return s.Forgotten && s.LoggerDeadline.IsZero() }

// Close closes all files of the service.
func (s *Service) Close() {
	s.Main.close()
	s.LoggerDir.close()
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
		_ = errors.Join(s.Read.Close(), s.Write.Close())
		s.Read, s.Write = nil, nil
	}
}

// OpenDirectory opens the directory at path for the service. link means that path is a symbolic link. If an older service of
// this name has not ended, the new service takes over its pipe. Call Register next.
func (s *Service) OpenDirectory(path string, link bool) error {
	main, err := s.open(path, link)
	if err != nil {
		return err
	}
	s.Main.close()
	s.LoggerDir.close()
	s.Main, s.LoggerDir, s.Leaving, s.Forgotten = *main, nil, false, false
	if s.Main.mayRecordDeaths() {
		_ = s.Main.dir.Remove(formats.TallyFile) // another supervisor may have left this file
	}
	return nil
}

// Register registers the service with the supervisor.
func (s *Service) Register() {
	s.scanner.Watch(s.Main.Path)
	s.registerAll()
}

// RereadDefinitions reads the definitions again and repeats the ownership check. Changes take effect at the next start of the
// service.
func (s *Service) RereadDefinitions() {
	if s.Leaving || s.Forgotten || s.Main.dir == nil {
		return
	}
	if s.LoggerDir != nil {
		if next := s.recheckOwner(s.LoggerDir); next != nil {
			s.LoggerDir = next
		}
	}
	if next := s.recheckOwner(&s.Main); next != nil {
		s.Main = *next
	}
	s.registerAll()
}

// registerAll registers the service and its logger with their present definitions.
func (s *Service) registerAll() {
	def := formats.ReadDefinition(s.Main.dir)
	had := s.LoggerDir
	if def.Logger {
		s.defineLogger()
	}
	if s.Main.unregistered || had != s.LoggerDir || !reflect.DeepEqual(def, s.Main.Definition) {
		s.register(s.Name, &s.Main, def)
	}
	if !def.Logger && s.LoggerDir != nil {
		s.dropLogger()
		s.scanner.PublishState()
	}
}

// defineLogger registers the logger of the service if its definition is new or has changed. If the logger is new, it first makes
// the pipe to it.
func (s *Service) defineLogger() {
	logs := s.LoggerDir
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
		return // the directory could not be opened after a re-execution; the running logger continues
	}
	s.LoggerDir = logs
	if def := formats.ReadDefinition(logs.dir); logs.unregistered || !reflect.DeepEqual(def, logs.Definition) {
		s.register(s.LoggerName(), logs, def)
	}
}

// register registers a service or logger with the supervisor. It publishes the state first, because a re-execution must hand
// over each directory that the supervisor knows. After a failed start and a repair of the definition, the service starts at
// once.
func (s *Service) register(name string, p *Directory, def formats.Definition) {
	s.reportProblems(name, p, def)
	repaired := p.Definition.Broken != "" && def.Broken == ""
	p.Definition, p.unregistered = def, false
	u := s.unit(name, p)
	switch {
	case p == s.LoggerDir:
		u.StdOverrides[0], u.Policy.DrainsInput = s.Read, true
	case def.Logger && s.LoggerDir != nil:
		u.StdOverrides[1] = s.Write
	}
	want := supervisor.WantUp
	if def.Down {
		want = supervisor.WantDown
	}
	s.scanner.PublishState()
	ctx, _ := s.scanner.Agent()
	if err := s.scanner.Register(ctx, u, want); err != nil {
		s.scanner.Say("cannot supervise %s: %v", name, err)
		return
	}
	v := s.scanner.Snapshot().Find(name)
	if repaired && v != nil && v.Want == supervisor.WantUp && v.State == supervisor.Backoff && v.LastExit != nil && v.LastExit.Cause == supervisor.CauseSpawn {
		_ = s.sendEvent(supervisor.Start{Name: name}) // otherwise the service starts after its restart delay
	}
}

// LoggerName returns the name of the logger in the supervisor.
func (s *Service) LoggerName() string { return s.Name + "/" + formats.LogDir }

// reportProblems reports the problems of a service directory. It repeats a report only if the problems have changed.
func (s *Service) reportProblems(name string, p *Directory, def formats.Definition) {
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

func (s *Service) sendEvent(e supervisor.Event) error {
	ctx, _ := s.scanner.Agent()
	return s.scanner.Do(ctx, e)
}

// BeginRemoval tells the supervisor to end the service of a removed directory. After that, its logger finds the end of its
// input.
func (s *Service) BeginRemoval() {
	s.Leaving = true
	s.Main.closeDir()
	s.scanner.Unwatch(s.Main.Path) // usually the kernel has removed the watch with the directory
	if err := s.sendEvent(supervisor.Remove{Name: s.Name}); errors.Is(err, supervisor.ErrUnknown) {
		s.releaseRemoved()
	}
}

// releaseRemoved releases a removed directory after the end of its service, and lets the logger end.
func (s *Service) releaseRemoved() {
	s.dropLogger()
	s.Main.close()
	s.Leaving, s.Forgotten = false, true
	s.scanner.PublishState()
}

// dropLogger lets the logger read its input to the end, without another start.
func (s *Service) dropLogger() {
	if s.LoggerDir == nil {
		return
	}
	_ = s.sendEvent(supervisor.StayDown{Name: s.LoggerName()})
	s.scanner.Unwatch(s.LoggerDir.Path) // the watch still exists if only the outer directory was moved
	s.closePipe()
	s.LoggerDir.close()
	s.LoggerDir = nil
	s.LoggerDeadline = time.Now().Add(loggerEndTimeout)
	s.endLogger()
}

// endLogger removes the logger from the supervisor if it has ended or its time is over. Otherwise it asks the scanner for
// another check.
func (s *Service) endLogger() {
	if s.LoggerDir != nil { // a new logger has replaced this one
		s.LoggerDeadline = time.Time{}
		return
	}
	v := s.scanner.Snapshot().Find(s.LoggerName())
	down := v == nil || v.PID == 0 && v.State == supervisor.Down
	if !down && time.Now().Before(s.LoggerDeadline) {
		s.scanner.CheckAfter(loggerPollInterval)
		return
	}
	s.LoggerDeadline = time.Time{}
	_ = s.sendEvent(supervisor.Remove{Name: s.LoggerName()})
}

// HandleLostRecords repeats the work of calls of Observe that were lost with records of the supervisor. It releases a removed
// service that the supervisor no longer knows. It also removes a logger that has ended or whose time is over.
func (s *Service) HandleLostRecords() {
	if s.Leaving && s.scanner.Snapshot().Find(s.Name) == nil {
		s.releaseRemoved()
	}
	if !s.LoggerDeadline.IsZero() {
		s.endLogger()
	}
}

// Observe handles a record of the supervisor about the service or its logger.
func (s *Service) Observe(r supervisor.Record) {
	switch {
	case r.Dropped && r.Service == s.Name && s.Leaving:
		s.releaseRemoved()
	case r.Exit != nil && !s.Forgotten:
		s.RereadDefinitions() // refresh first, because the directory may no longer belong to root
		s.countDeath(r)
	}
}

// countDeath adds the end of a run to the file that s6-svdt reads. It ignores errors, because only people use this file.
func (s *Service) countDeath(r supervisor.Record) {
	at := &s.Main
	if r.Service != s.Name {
		at = s.LoggerDir
	}
	if at == nil || at.dir == nil || at.Definition.MaxDeaths == 0 || r.Exit.PID == 0 || !at.mayRecordDeaths() {
		return
	}
	tally, err := at.dir.ReadFile(formats.TallyFile, formats.MaxTallyFile)
	if errors.Is(err, fs.ErrNotExist) {
		_ = at.dir.Mkdir(filepath.Dir(formats.TallyFile), 0o755) // the directory exists, or Replace also fails
	} else if err != nil {
		return
	}
	tally = formats.AddDeath(tally, r.Exit.At, r.Exit.Code, r.Exit.Signal, at.Definition.MaxDeaths)
	_ = at.dir.Replace(formats.TallyFile, tally, fsutil.ReplaceOptions{Mode: 0o644, NoSync: true}) // after an error, the file keeps its old content
}

// TakeOver opens the directories of the service again after a re-execution. link means that the path of the service directory
// is a symbolic link.
func (s *Service) TakeOver(link bool) {
	_, agent := s.scanner.Agent()
	if !s.Leaving && !s.Forgotten {
		s.Main.reopen(link, agent)
		s.scanner.Watch(s.Main.Path)
	}
	if s.LoggerDir != nil {
		s.LoggerDir.reopen(false, agent)
		s.scanner.Watch(s.LoggerDir.Path)
		// A logger that the supervisor does not know must be registered again.
		s.LoggerDir.unregistered = s.scanner.Snapshot().Find(s.LoggerName()) == nil
	}
}

// SetScanner connects a service from a re-execution with its new scanner. Call TakeOver next.
func (s *Service) SetScanner(scanner Scanner) { s.scanner = scanner }

const (
	restartDelay          = time.Second // time from the end of a run and of its finish program to the next run
	spawnRetryDelay       = time.Minute // time from a failed start to the next attempt
	immediateRestartAfter = time.Second // a run that was ready for this time is restarted at once
	finishCodeNoRestart   = 125         // exit code of a finish program that means no restart
)

// unit returns the definition of the service or logger in the directory p for the supervisor, with the restart policy of
// s6-supervise.
func (s *Service) unit(name string, p *Directory) supervisor.Unit {
	spec := s.scanner.ForeignSpec(p.Root)
	dir, def := p.Path, p.Definition
	if p.Pin != nil { // no other directory can replace a pinned one
		dir = "/proc/self/fd/" + strconv.Itoa(int(p.Pin.Fd()))
	}
	spec.Argv, spec.Dir, spec.DirIsFD = []string{"./" + formats.RunFile, name}, dir, p.Pin != nil
	policy := supervisor.Policy{
		Backoff:    backoff.Policy{Initial: restartDelay, Max: restartDelay, Factor: 1},
		SpawnRetry: spawnRetryDelay,
		StopSignal: def.DownSignal, Grace: def.KillTimeout, KillNever: def.KillTimeout == 0, KillScope: supervisor.ScopeMain, LeaveDescendants: true,
		RunsFinish: true, FinishTimeout: def.FinishTimeout, PermanentFinishCodes: []int{finishCodeNoRestart},
		ReportsReadiness: def.NotifyFD != 0,
	}
	if policy.ReportsReadiness {
		policy.ReadyRestart = immediateRestartAfter // a service that doesn't report readiness has no ready time
	}
	if def.KillGroup {
		policy.KillScope = supervisor.ScopeGroup
	}
	return supervisor.Unit{
		Name: name, Kind: supervisor.KindService, YieldsToProfile: !p.Root, Policy: policy, NotifyFD: def.NotifyFD,
		Spec:          spec,
		FinishProgram: "./" + formats.FinishFile, OpenDir: p.Pin,
	}
}
