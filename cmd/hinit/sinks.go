package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"hinit/logrotate"
)

// sinks is the supervisor's side of the logs: it finds the log of a service by its name without touching a disk.
type sinks struct {
	set  *logrotate.Set
	logs sync.Map // service → *logrotate.Log
}

func newSinks(set *logrotate.Set) *sinks { return &sinks{set: set} }

// open makes the log of a service known. An open one stays as it is.
func (s *sinks) open(name, profile, file string) {
	if profile == "" {
		profile = name
	}
	s.logs.Store(name, s.set.Open(name, profile, file))
}

// drop ends the log of a service that is gone.
func (s *sinks) drop(name string) {
	s.logs.Delete(name)
	s.set.Drop(name)
}

func (s *sinks) get(name string) *logrotate.Log {
	l, _ := s.logs.Load(name)
	log, _ := l.(*logrotate.Log)
	return log
}

// Pipes implements supervisor.LogSink.
func (s *sinks) Pipes(name string) (stdout, stderr *os.File, err error) {
	l := s.get(name)
	if l == nil {
		return nil, nil, fmt.Errorf("cannot connect the output of %q: it has no log", name)
	}
	return l.Pipes()
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
