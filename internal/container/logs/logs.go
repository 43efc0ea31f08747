// Package logs opens the log of each service with its limits, finds it by the name of the service, and hides the profile's
// secrets on the console. It gives the supervisor the pipes of the logs.
//
// Opening a log does not touch the disk. A service that is registered again keeps its log. The package owns a goroutine while
// [Logs.MaskSecrets] waits for a disk.
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
	"hinit/internal/pause"
	"hinit/internal/runs"
	"hinit/internal/tuning"
	"hinit/logrotate"
	"hinit/logrotate/gzipped"
	"hinit/supervisor"
)

// Options are the parts of hinit that Logs use. Any goroutine may call the functions.
type Options struct {
	Config func() *config.Config
	Actor  *fsutil.Actor // user whose rights are used to write the log files
	// ReadSecrets returns the secrets in the .env of a profile. more means that some are missing, because there are too many. It
	// may wait for a disk.
	ReadSecrets      func(profile string) (values []string, more bool, err error)
	CompressArchives gzipped.Packer                   // packer that compresses archives, which are rotated log files
	OnOutput         func()                           // function that is called after a service has written; it must not block
	Say              func(format string, args ...any) // function that writes a line to the container log
	Warn             func(format string, args ...any) // function that writes a warning once, and shows it in the status
}

// Logs holds the logs of all services. Any goroutine may call its methods.
type Logs struct {
	*logrotate.Set

	Runs    *runs.Tracker // commands that clients run once; each has a file of its own
	options Options
	logs    sync.Map // logs by service: string → *logrotate.Log

	// guards registering and masked, and prevents a Drop during a Protect; no goroutine holds mu during disk access
	mu            sync.Mutex
	registrations map[string]int // registrations under way, by service; the supervisor may not know the service yet
	maskedBytes   map[string]int // bytes of memory for the hidden secrets, by service
}

// New returns the logs of a container, without any service.
func New(o Options) *Logs {
	cfg := o.Config()
	l := &Logs{options: o, Runs: runs.NewTracker(), registrations: make(map[string]int), maskedBytes: make(map[string]int)}
	l.Set = logrotate.New(logrotate.Options{
		MaxLine: cfg.Logs.MaxLineKB << 10, Console: logrotate.ConsoleMode(cfg.Logs.Console), ConsoleStall: cmp.Or(cfg.Logs.ConsoleStall, -1), Mask: cfg.Logs.MaskSecrets,
		Stdout: os.Stdout, Stderr: os.Stderr, Actor: o.Actor, PackArchives: o.CompressArchives, OnWrite: o.OnOutput,
		Warn: func(service, message string) { o.Say("log of %s: %s", cmp.Or(service, "console"), message) },
	})
	return l
}

// logLimits converts the limits of hinit.yaml for package logrotate.
func logLimits(l config.LogLimits) logrotate.Limits {
	const mb = 1_000_000
	return logrotate.Limits{
		MaxSize: int64(l.MaxSizeMB) * mb, Archives: l.Archives, MaxAge: l.MaxAge, Quota: int64(l.QuotaMB) * mb,
		MinFree: int64(l.MinFreeMB) * mb, Rate: l.RateLimit, Compress: l.Compress == config.CompressGzip,
	}
}

// Open opens the log of a service with the limits of hinit.yaml. If it is open already, only its limits change.
func (l *Logs) Open(name, profile, file string, kind supervisor.Kind) {
	cfg := l.options.Config()
	limits := cfg.LogLimitsOf(profile)
	if s, own := cfg.Services[name]; own && kind == supervisor.KindService {
		limits = s.Logs
	}
	log := l.Set.Open(name, cmp.Or(profile, name), file)
	log.SetLimits(logLimits(limits))
	l.logs.Store(name, log)
}

// Protect prevents Drop from ending the log of a service that is being registered. It lasts until release is called.
func (l *Logs) Protect(name string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.registrations[name]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.registrations[name]--
		if l.registrations[name] == 0 {
			delete(l.registrations, name)
		}
	}
}

// Drop ends the log of a removed service. It does nothing while the service is being registered again, or if known says that
// the supervisor has the service.
func (l *Logs) Drop(name string, known func(string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.registrations[name] == 0 && !known(name) {
		l.logs.Delete(name)
		delete(l.maskedBytes, name)
		l.Set.Drop(name)
	}
}

// DropUnknown calls Drop for every service that has a log.
func (l *Logs) DropUnknown(known func(string) bool) {
	l.logs.Range(func(name, _ any) bool {
		service, _ := name.(string)
		l.Drop(service, known)
		return true
	})
}

// Get returns the log of a service, or nil if no log of that name is open.
func (l *Logs) Get(name string) *logrotate.Log {
	found, _ := l.logs.Load(name)
	log, _ := found.(*logrotate.Log)
	return log
}

// Pipes returns the write ends for the output of a service's next run, for [supervisor.LogSink].
func (l *Logs) Pipes(name string) (stdout, stderr *os.File, err error) {
	if runs.IsRun(name) {
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
	if err == nil && strings.HasPrefix(name, units.HookPrefix) { // a boot hook must not write to the container's standard output
		_ = stdout.Close() // an error loses nothing, because nothing was written to stdout
		stdout = stderr
	}
	return stdout, stderr, err
}

// Tail passes the last lines of a service's output to done, for [supervisor.LogSink].
func (l *Logs) Tail(name string, done func(lines []string)) {
	if log := l.Get(name); log != nil {
		log.Tail(done)
	}
}

// drainTimeout is the time limit of [Logs.Drain]. Reading what is in the pipes takes less.
const drainTimeout = 300 * time.Millisecond

// Drain blocks until the log has read all output of a service and has queued it for the console, but at most for drainTimeout.
func (l *Logs) Drain(name string) {
	read := make(chan struct{})
	l.Tail(name, func([]string) { close(read) })
	pause.AtMost(drainTimeout, read)
}

// Output returns counters of a service's output. It returns nil if the service has no log, or has written no line and had no
// log error.
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

// ReadSecrets reads the .env of a profile, and hides its values on the console. It does nothing if logs.mask is off. It
// blocks on the disk.
func (l *Logs) ReadSecrets(service, profile string) {
	if !l.options.Config().Logs.MaskSecrets {
		return
	}
	values, more, err := l.options.ReadSecrets(profile)
	if err != nil {
		l.options.Say("%s: cannot read its secrets, so the values in its .env may be shown here: %v", service, err)
		return
	}
	values, all := l.fitSecrets(service, values)
	if more || !all {
		l.options.Warn("%s: its .env has more secrets than hinit masks, so the container log may show some of them; keep only real secrets in it", service)
	}
	if log := l.Get(service); log != nil {
		log.HideSecrets(values)
	}
}

// maxMaskedBytes limits the secrets of all services together. Agents write them, and PID 1 keeps them in memory.
const maxMaskedBytes = 2 << 20

// fitSecrets returns as many secrets of a service as fit into maxMaskedBytes. all is false if some do not fit.
func (l *Logs) fitSecrets(service string, values []string) (kept []string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Get(service) == nil { // the service was removed while its file was read
		return nil, true
	}
	delete(l.maskedBytes, service)
	room := maxMaskedBytes
	for _, n := range l.maskedBytes {
		room -= n
	}
	used := 0
	for i, v := range values {
		used += len(v)
		if used > room {
			return values[:i], false
		}
		l.maskedBytes[service] = used
	}
	return values, true
}

// secretsTimeout is how long the start of a gateway waits for its .env. A volume that does not answer must not delay other
// starts.
const secretsTimeout = time.Second

// MaskSecrets hides the secrets of a gateway that is about to start. It waits for the disk, but not longer than
// secretsTimeout.
func (l *Logs) MaskSecrets(service, profile string) {
	pause.AtMost(secretsTimeout, guard.GoWithDone("reading secrets", func() { l.ReadSecrets(service, profile) }))
}

// Handover is the state of the logs, and of the commands of clients, for the next program of a re-execution.
type Handover struct {
	Logs *logrotate.Handover
	Runs *runs.Handover
}

// HandOver returns the state that TakeOver needs in the program after a re-execution. The logs must be frozen.
func (l *Logs) HandOver() (old Handover, err error) {
	old.Runs = l.Runs.HandOver()
	old.Logs, err = l.Set.HandOver()
	return old, err
}

// TakeOver continues the logs of the previous program. services are those that the supervisor knows.
func (l *Logs) TakeOver(old Handover, services []*supervisor.Service) error {
	if err := l.Set.TakeOver(old.Logs); err != nil {
		return err
	}
	l.Runs.TakeOver(old.Runs)
	for _, s := range services {
		if s.Kind != supervisor.KindRun && s.Kind != supervisor.KindCheck { // commands of clients and checks have no log
			l.Open(s.Name, s.Profile, s.Log, s.Kind)
		}
	}
	return nil
}

// StoreReport writes the report of a fault to the directory of the logs, as the agent's user, and returns its path.
func (l *Logs) StoreReport(name string, report []byte) (path string, err error) {
	dir := filepath.Join(l.options.Config().Home, "logs")
	d, _, err := fsutil.MakeNoLink(dir, 0o755, l.options.Actor.WithPool(blocking.Volume))
	if err != nil {
		return "", err
	}
	defer d.Close()
	return filepath.Join(dir, name), d.Append(name, report, 0o640)
}
