package personality

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/s6/scandir"
)

// Host is the part of PID 1 that the personality needs. Its methods may be called from any goroutine.
type Host interface {
	scandir.Host
	// Command carries out an operator's order to a service, and records the operator's intent.
	Command(ctx context.Context, verb client.Verb, name string) error
	// Refuse returns an error if the service is a gateway that must not start now.
	Refuse(name string) error
	// Warn reports a warning, which the status command also shows.
	Warn(format string, args ...any)
}

// Settings describes the container that the personality serves.
type Settings struct {
	Agent *fsutil.Actor // the agent's user, who owns the scan directory
	Cred  *proc.Cred    // user that runs services; nil for hinit's own user
	Env   []string      // environment of the container
	Since time.Time     // start time of the container
	Main  bool          // publish a slot main-hermes that stands for the container's CMD, because no service has this name
}

// S6 makes PID 1 act as s6 for the tools of s6 and the agent.
type S6 struct {
	*scandir.Scanner
	host  Host
	cred  *proc.Cred
	since time.Time // start time of the container
}

var _ registry.Follower = (*S6)(nil)

// Open creates the directories of s6, and acts as s6 until ctx ends.
func Open(ctx context.Context, host Host, with Settings) (*S6, error) {
	scanner, err := scandir.Open(ctx, host, with.layout())
	if err != nil {
		return nil, fmt.Errorf("hinit does not answer as s6: %w", err)
	}
	// The write sets the name of the whole process, not only of the thread that writes (proc(5)).
	if err := os.WriteFile("/proc/self/comm", []byte(comm), 0); err != nil {
		host.Warn("cannot be called %s, so the agent's commands do not find it: %v", comm, err)
	}
	s := &S6{scanner, host, with.Cred, with.Since}
	if with.Main {
		run := script(with.Cred, nil, "", []string{"sleep", "infinity"}, "This slot stands for the container. hinit runs nothing for it.")
		if err := scanner.PublishFixed(ctx, registry.MainHermes, scandir.Files{Run: run}); err != nil {
			host.Warn("%v", err) // after an error the scanner tries again later
		}
	}
	return s, nil
}

// TakeOver continues with the scan directory of the program before a re-execution. It changes no file. Call Start to begin the
// work.
func TakeOver(host Host, with Settings, old *scandir.Handover) (*S6, error) {
	scanner, err := scandir.TakeOver(host, with.layout(), old)
	if err != nil {
		return nil, fmt.Errorf("hinit does not answer as s6 any more: %w", err)
	}
	return &S6{scanner, host, with.Cred, with.Since}, nil
}

func (w Settings) layout() scandir.Layout {
	g := scandir.Layout{Scan: scandir.DefaultScan, Base: scandir.DefaultBase, Agent: w.Agent, Env: w.Env}
	if dir := os.Getenv(scandir.ScanVariable); dir != "" {
		g.Scan = filepath.Clean(dir)
	}
	return g
}

// Publish implements [registry.Follower].
func (s *S6) Publish(ctx context.Context, d registry.Slot) {
	err := s.Scanner.Publish(ctx, d.Name, s.files(d), d.Down)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.host.Warn("%v", err)
	}
}

// Enqueue implements [registry.Follower].
func (s *S6) Enqueue(d registry.Slot) { s.Scanner.Enqueue(d.Name, s.files(d), d.Down) }
