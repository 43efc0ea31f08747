// Package logs connects the supervisor with the logs. It opens the log of each service with its limits, finds it by the service's
// name, and masks the profile's secrets on the console.
//
// Opening a service's log does not access the disk. A service that is registered again keeps its log. The package owns a
// goroutine while [Logs.MaskSecrets] waits for a disk.
package logs

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/runs"
	"hinit/internal/tuning"
	"hinit/logrotate"
	"hinit/logrotate/gzipped"
	"hinit/supervisor"
)

// Options are the parts that Logs work with. The functions may be called from any goroutine.
type Options struct {
	Config func() *config.Config
	Actor  *fsutil.Actor // identity with which the log files are written
	// Secrets returns the secrets in a profile's .env. The result more reports whether some secrets were left out. Secrets may
	// wait for a disk.
	Secrets          func(profile string) (values []string, more bool, err error)
	CompressArchives gzipped.Packer                   // compresses archives (rotated log files)
	OnOutput         func()                           // called after a service has written; it must not block
	Say              func(format string, args ...any) // writes a line to the container log
	Warn             func(format string, args ...any) // writes a warning to hinit's log once, and shows the warning in status
}

// Logs holds the logs of all services. Its methods may be called from any goroutine.
type Logs struct {
	*logrotate.Set

	Runs *runs.Book // commands that clients run once; each writes to its own file
	o    Options
	logs sync.Map // logs by service: string → *logrotate.Log

	mu     sync.Mutex     // guards held and masked, and prevents a Drop during a Hold; never held across disk operations
	held   map[string]int // number of registrations in progress, by service; the supervisor may not know these services yet
	masked map[string]int // bytes of secrets that are kept in memory for masking, by service
}

// New makes the logs of a container with the current configuration.
func New(o Options) *Logs {
	cfg := o.Config()
	l := &Logs{o: o, Runs: runs.NewBook(), held: make(map[string]int), masked: make(map[string]int)}
	l.Set = logrotate.New(logrotate.Options{
		MaxLine: cfg.Logs.MaxLineKB << 10, Console: logrotate.ConsoleMode(cfg.Logs.Console), ConsoleStall: cmp.Or(cfg.Logs.ConsoleStall, -1), Mask: cfg.Logs.Mask,
		Stdout: os.Stdout, Stderr: os.Stderr, Actor: o.Actor, Pack: o.CompressArchives, Wrote: o.OnOutput,
		Warn: func(service, message string) {
			say := o.Say
			if service == "" { // a warning about the console may be invisible on the console
				say = o.Warn
			}
			say("log of %s: %s", cmp.Or(service, "console"), message)
		},
	})
	return l
}

// logLimits converts limits of the configuration for package logrotate. 0 archives, which means none, becomes -1.
func logLimits(l config.LogLimits) logrotate.Limits {
	const mb = 1_000_000
	limits := logrotate.Limits{
		MaxSize: int64(l.MaxSizeMB) * mb, Archives: l.Archives, MaxAge: l.MaxAge, Quota: int64(l.QuotaMB) * mb,
		MinFree: int64(l.MinFreeMB) * mb, Rate: l.RateLimit, Compress: l.Compress == config.CompressGzip,
	}
	if l.Archives == 0 {
		limits.Archives = -1
	}
	return limits
}

// Open opens the log of a service, with the limits in the configuration. If the log is already open, it only changes the limits.
func (l *Logs) Open(name, profile, file string, kind supervisor.Kind) {
	cfg := l.o.Config()
	limits := cfg.LogLimitsOf(profile)
	if s, own := cfg.Services[name]; own && kind == supervisor.KindService {
		limits = s.Logs
	}
	log := l.Set.Open(name, cmp.Or(profile, name), file)
	log.Limit(logLimits(limits))
	l.logs.Store(name, log)
}

// Hold keeps Drop from ending the log of a service that is being registered. release ends this protection.
func (l *Logs) Hold(name string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[name]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.held[name]--; l.held[name] == 0 {
			delete(l.held, name)
		}
	}
}

// Drop ends the log of a removed service, unless the service is being registered again or known reports that the supervisor knows
// it.
func (l *Logs) Drop(name string, known func(string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[name] == 0 && !known(name) {
		l.logs.Delete(name)
		delete(l.masked, name)
		l.Set.Drop(name)
	}
}

// Sweep calls Drop for every service that has a log.
func (l *Logs) Sweep(known func(string) bool) {
	l.logs.Range(func(name, _ any) bool {
		service, _ := name.(string)
		l.Drop(service, known)
		return true
	})
}

// Get returns the log of a service, or nil if it has none.
func (l *Logs) Get(name string) *logrotate.Log {
	found, _ := l.logs.Load(name)
	log, _ := found.(*logrotate.Log)
	return log
}

// Pipes implements supervisor.LogSink.
func (l *Logs) Pipes(name string) (stdout, stderr *os.File, err error) {
	if runs.Owns(name) {
		return l.Runs.Pipes(name)
	}
	log := l.Get(name)
	if log == nil {
		return nil, nil, fmt.Errorf("cannot connect the output of %q: it has no log", name)
	}
	if err := tuning.CheckDescriptors(); err != nil {
		return nil, nil, fmt.Errorf("cannot connect the output of %q: %w", name, err)
	}
	stdout, stderr, err = log.Pipes()
	if err == nil && strings.HasPrefix(name, units.HookPrefix) { // the boot must not write to the container's standard output
		_ = stdout.Close() // no data was written to it
		stdout = stderr
	}
	return stdout, stderr, err
}

// Tail implements supervisor.LogSink.
func (l *Logs) Tail(name string, done func(lines []string)) {
	if log := l.Get(name); log != nil {
		log.Tail(done)
	}
}

// drainTime limits the wait in [Logs.Drain]. Reading the output never takes so long.
const drainTime = 300 * time.Millisecond

// Drain waits until the log has read everything that a service has written so far, and has queued it for the console. It gives up
// after drainTime.
func (l *Logs) Drain(name string) {
	read := make(chan struct{})
	l.Tail(name, func([]string) { close(read) })
	select {
	case <-read:
	case <-time.After(drainTime):
	}
}

// Output returns the counters of a service's output. It returns nil if the service has no log, or if it has neither lines nor an
// error.
func (l *Logs) Output(service string) *client.Output {
	log := l.Get(service)
	if log == nil {
		return nil
	}
	st := log.Stats()
	if st.Lines == 0 && st.LastError == "" {
		return nil
	}
	return &client.Output{
		Lines: st.Lines, Bytes: st.Bytes, Suppressed: st.Suppressed, ConsoleDropped: st.ConsoleDropped, FileLost: st.LinesLost, Error: st.LastError,
	}
}

// ReadSecrets reads the profile's .env and sets which of its values the console masks. It does nothing if masking is off. It
// blocks on the disk.
func (l *Logs) ReadSecrets(service, profile string) {
	if !l.o.Config().Logs.Mask {
		return
	}
	values, more, err := l.o.Secrets(profile)
	if err != nil {
		l.o.Say("%s: cannot read its secrets, so the values in its .env may be shown here: %v", service, err)
		return
	}
	values, all := l.fitSecrets(service, values)
	if more || !all {
		l.o.Warn("%s: its .env has more secrets than hinit masks, so the container log may show some of them; keep only real secrets in it", service)
	}
	if log := l.Get(service); log != nil {
		log.Hide(values)
	}
}

// maxMaskedBytes limits the secrets of all services together, in bytes, because agents write them and PID 1 keeps them.
const maxMaskedBytes = 2 << 20

// fitSecrets returns as many of a service's secrets as fit into maxMaskedBytes. The result all reports whether all of them fit.
func (l *Logs) fitSecrets(service string, values []string) (kept []string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.masked, service)
	room := maxMaskedBytes
	for _, n := range l.masked {
		room -= n
	}
	used := 0
	for i, v := range values {
		if used += len(v); used > room {
			return values[:i], false
		}
		l.masked[service] = used
	}
	return values, true
}

// secretsPatience limits how long a start waits for the profile's .env, so that a volume that does not answer doesn't delay other
// starts.
const secretsPatience = time.Second

// MaskSecrets makes the console mask the secrets of a gateway that may start next. It waits for the disk, but not longer than
// secretsPatience.
func (l *Logs) MaskSecrets(service, profile string) {
	read := make(chan struct{})
	guard.Go("reading secrets", func() {
		defer close(read)
		l.ReadSecrets(service, profile)
	})
	select {
	case <-read:
	case <-time.After(secretsPatience):
	}
}

// Handover is the state of the logs, and of the commands that clients run, at re-execution.
type Handover struct {
	Logs *logrotate.Handover
	Runs *runs.Handover
}

// HandOver returns the state that the program after a re-execution needs. The logs must be frozen.
func (l *Logs) HandOver() (old Handover, err error) {
	old.Runs = l.Runs.HandOver()
	old.Logs, err = l.Set.HandOver()
	return old, err
}

// TakeOver makes the new logs continue the old logs. services are the services that the supervisor knows.
func (l *Logs) TakeOver(old Handover, services []*supervisor.Service) error {
	if err := l.Set.TakeOver(old.Logs); err != nil {
		return err
	}
	l.Runs.TakeOver(old.Runs)
	for _, s := range services {
		if s.Kind != supervisor.KindRun && s.Kind != supervisor.KindCheck { // package logs keeps no logs of runs and checks
			l.Open(s.Name, s.Profile, s.Log, s.Kind)
		}
	}
	return nil
}

// StoreReport stores the report of a fault in the directory of the logs, as the agent's user, and returns its path.
func (l *Logs) StoreReport(name string, report []byte) (path string, err error) {
	dir := filepath.Join(l.o.Config().Home, "logs")
	d, _, err := fsutil.MakeReal(dir, 0o755, l.o.Actor.Limited(blocking.Volume))
	if err != nil {
		return "", err
	}
	defer d.Close()
	_, err = d.Append(name, report, 0o640)
	return filepath.Join(dir, name), err
}
