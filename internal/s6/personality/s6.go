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

// Host is the part of PID 1 that the personality uses. Its methods may be called from any goroutine.
type Host interface {
	scandir.Host
	// Command carries out an order to a service and records the intent.
	Command(ctx context.Context, verb client.Verb, name string) error
	// Refuse returns an error for a gateway that must not start now.
	Refuse(name string) error
	// Warn writes a warning that status also shows.
	Warn(format string, args ...any)
}

// Settings are the properties of the container that the personality needs.
type Settings struct {
	Agent *fsutil.Actor // owner of the scan directory
	Cred  *proc.Cred    // user of services, nil for hinit's
	Env   []string      // environment of the container
	Since time.Time     // when the container was started
	Main  bool          // the name main-hermes stands for the container's CMD, because no service has it
}

// S6 acts as s6 towards its tools and the agent.
type S6 struct {
	*scandir.Scanner
	host  Host
	cred  *proc.Cred
	since time.Time // when the container was started
}

var _ registry.Follower = (*S6)(nil)

// Open makes the directories of s6 and acts as s6 until ctx ends.
func Open(ctx context.Context, host Host, with Settings) (*S6, error) {
	scanner, err := scandir.Open(ctx, host, with.layout())
	if err != nil {
		return nil, fmt.Errorf("hinit does not answer as s6: %w", err)
	}
	// This sets the name of the whole process, not only of the thread that writes (proc(5)).
	if err := os.WriteFile("/proc/self/comm", []byte(comm), 0); err != nil {
		host.Warn("cannot be called %s, so the agent's commands do not find it: %v", comm, err)
	}
	s := &S6{scanner, host, with.Cred, with.Since}
	if with.Main {
		run := script(with.Cred, nil, "", []string{"sleep", "infinity"}, "This slot stands for the container. hinit runs nothing for it.")
		if err := scanner.PublishFixed(ctx, registry.MainHermes, scandir.Files{Run: run}); err != nil {
			host.Warn("%v", err) // another try follows later
		}
	}
	return s, nil
}

// TakeOver continues with the scan directory of the program before re-execution. It changes no file; the work begins with Start.
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
