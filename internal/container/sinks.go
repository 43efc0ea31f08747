package container

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/runs"
	"hinit/internal/tuning"
	"hinit/logrotate"
)

// sinks is the supervisor's side of the logs: it finds the log of a service by its name without touching a disk.
type sinks struct {
	set  *logrotate.Set
	runs *runs.Book // they have files of their own
	logs sync.Map   // service → *logrotate.Log

	mu   sync.Mutex     // guards held, and that nothing of it is dropped; never held while the disk is used
	held map[string]int // services that are being registered, which the supervisor need not know yet
}

func newSinks(set *logrotate.Set) *sinks {
	return &sinks{set: set, runs: runs.NewBook(), held: make(map[string]int)}
}

// logLimits are the limits as the configuration has them, where no archives are 0.
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

// open makes the log of a service known. Of an open one only the limits change.
func (s *sinks) open(name, profile, file string, limits logrotate.Limits) {
	if profile == "" {
		profile = name
	}
	l := s.set.Open(name, profile, file)
	l.Limit(limits)
	s.logs.Store(name, l)
}

// hide says which texts the console must not show of a service.
func (s *sinks) hide(name string, secrets []string) {
	if l := s.get(name); l != nil {
		l.Hide(secrets)
	}
}

// hold keeps the log of a service while it is being registered. release ends that.
func (s *sinks) hold(name string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[name]--; s.held[name] == 0 {
			delete(s.held, name)
		}
	}
}

// drop ends the log of a service that is gone, unless it has come back or is coming back.
func (s *sinks) drop(name string, known func(string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[name] == 0 && !known(name) {
		s.logs.Delete(name)
		s.set.Drop(name)
	}
}

// sweep ends the logs of all services that are gone.
func (s *sinks) sweep(known func(string) bool) {
	s.logs.Range(func(name, _ any) bool {
		service, _ := name.(string)
		s.drop(service, known)
		return true
	})
}

func (s *sinks) get(name string) *logrotate.Log {
	l, _ := s.logs.Load(name)
	log, _ := l.(*logrotate.Log)
	return log
}

// Pipes implements supervisor.LogSink.
func (s *sinks) Pipes(name string) (stdout, stderr *os.File, err error) {
	if runs.Owns(name) {
		return s.runs.Pipes(name)
	}
	l := s.get(name)
	if l == nil {
		return nil, nil, fmt.Errorf("cannot connect the output of %q: it has no log", name)
	}
	if err := tuning.SpareDescriptors(); err != nil {
		return nil, nil, fmt.Errorf("cannot connect the output of %q: %w", name, err)
	}
	stdout, stderr, err = l.Pipes()
	if err == nil && strings.HasPrefix(name, units.HookPrefix) { // the container's standard output is not for the boot
		_ = stdout.Close() // nothing was written through it
		stdout = stderr
	}
	return stdout, stderr, err
}

// Tail implements supervisor.LogSink.
func (s *sinks) Tail(name string, done func(lines []string)) {
	if l := s.get(name); l != nil {
		l.Tail(done)
	}
}

// drainTime is how long drain waits, a little longer than it takes at most.
const drainTime = 300 * time.Millisecond

// drain waits until what a service has written so far is read and on its way to the console.
func (s *sinks) drain(name string) {
	read := make(chan struct{})
	s.Tail(name, func([]string) { close(read) })
	select {
	case <-read:
	case <-time.After(drainTime):
	}
}

// Close writes everything out.
func (s *sinks) Close(ctx context.Context) error { return s.set.Close(ctx) }
