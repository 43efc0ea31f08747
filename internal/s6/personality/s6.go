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

// Host is PID 1 around the personality. Its methods may be called from any goroutine.
type Host interface {
	scandir.Host
	// Command carries out an order to a service and records the intent.
	Command(ctx context.Context, verb client.Verb, name string) error
	// Refuse returns an error for a gateway that must not be started now.
	Refuse(name string) error
	// Warn says something that the status goes on showing.
	Warn(format string, args ...any)
}

// Settings are what the personality takes from the container, once.
type Settings struct {
	Agent *fsutil.Actor // whom the scan directory belongs to
	Cred  *proc.Cred    // who runs services, nil for whoever hinit is
	Env   []string      // of the container
	Since time.Time     // the container runs
	Main  bool          // the name main-hermes is not taken, so it is the container's
}

// S6 answers as s6.
type S6 struct {
	*scandir.Scanner
	host  Host
	cred  *proc.Cred
	since time.Time // the container runs
}

var _ registry.Follower = (*S6)(nil)

// Open makes the directories of s6 and answers as s6 until ctx ends.
func Open(ctx context.Context, host Host, with Settings) (*S6, error) {
	scanner, err := scandir.Open(ctx, host, with.layout())
	if err != nil {
		return nil, fmt.Errorf("hinit does not answer as s6: %w", err)
	}
	// This names the whole process, not only the thread that writes (proc(5)).
	if err := os.WriteFile("/proc/self/comm", []byte(comm), 0); err != nil {
		host.Warn("cannot be called %s, so the agent's commands do not find it: %v", comm, err)
	}
	s := &S6{scanner, host, with.Cred, with.Since}
	if with.Main {
		run := script(with.Cred, nil, "", []string{"sleep", "infinity"}, "This slot stands for the container. hinit runs nothing for it.")
		if err := scanner.PublishFixed(ctx, registry.MainHermes, scandir.Files{Run: run}); err != nil {
			host.Warn("%v", err) // it is tried again
		}
	}
	return s, nil
}

// TakeOver takes over the scan directory of the previous generation. It changes no file; the work begins with Start.
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
