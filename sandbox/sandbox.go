package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/pause"
	"hinit/sandbox/mux"
)

// Sandbox is this process's handle for one container.
type Sandbox struct {
	manager       *Manager
	key           Key
	labels        map[string]string
	adopted       bool          // Whether [Manager.Adopt] found the container, which is then never started or recreated.
	reconnectLock chan struct{} // Mutex with a cancellable wait, for reconnecting.
	noRootPrinted atomic.Bool   // Whether Options.NoRootHint was already printed.

	mu              sync.Mutex
	id, name        string // ID and name of the container.
	link            *helperLink
	dir             string    // Directory in which the next command starts.
	mustForward     bool      // Whether the values of the forwarded variables must still be sent to this container.
	runningCommands int       // Number of running commands.
	lastEnd         time.Time // Time at which the last command ended.
	closed          bool
}

// ID returns the current id of the container.
func (s *Sandbox) ID() string {
	id, _ := s.idAndName()
	return id
}

func (s *Sandbox) idAndName() (id, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.name
}

// Labels returns the three labels that identify the container.
func (s *Sandbox) Labels() map[string]string {
	return map[string]string{LabelAgent: "1", LabelTask: s.labels[LabelTask], LabelProfile: s.labels[LabelProfile]}
}

// beginCommand counts a command as running until the caller calls exit. It returns an error if the sandbox is closed.
func (s *Sandbox) beginCommand() (exit func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.runningCommands++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lastEnd = time.Now()
		if s.runningCommands--; s.runningCommands == 0 && s.closed {
			s.link.close()
		}
	}, nil
}

func (s *Sandbox) lastUse() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runningCommands > 0 {
		return time.Now()
	}
	return s.lastEnd
}

// shutDown makes the sandbox refuse new commands, and closes the connection after the last running one. If now is true, it
// closes the connection at once, which ends all commands.
func (s *Sandbox) shutDown(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if now || s.runningCommands == 0 {
		s.link.close()
	}
}

// isBusy reports whether a command is running.
func (s *Sandbox) isBusy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningCommands > 0
}

// Describe returns what the engine, the helper and this process know about the sandbox.
func (s *Sandbox) Describe(ctx context.Context) (Description, error) {
	c, err := s.manager.engine.Inspect(ctx, s.ID())
	if err != nil {
		return Description{}, err
	}
	d := s.manager.describe(c)
	if c.State == Running {
		var end mux.End
		end, err = s.request(ctx, Request{Timeout: quickRequestTimeout}, func() mux.Open { return mux.Open{Op: mux.OpJobs} })
		// These are the background commands of all processes; ended ones are kept for half an hour.
		d.Jobs, d.Clients = append([]Job{}, end.Jobs...), end.Clients
	}
	s.addLocalDetails(&d)
	return d, err
}

// quickRequestTimeout limits a request that the helper can answer at once; [killGrace] and [endTimeout] are added to it. The
// limit is needed because a process in the container can replace the helper, and answer pings for ever.
const quickRequestTimeout = time.Second

// addLocalDetails adds to d what only this process knows about its container. If d describes another container, it does
// nothing.
func (s *Sandbox) addLocalDetails(d *Description) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != d.ID {
		return
	}
	d.Dir, d.Commands = s.dir, d.Commands+s.runningCommands
	if s.link != nil {
		d.Exec, d.Reason = s.link.mode, s.link.reason
	}
}

// describe converts the engine's data about a container to a [Description].
func (m *Manager) describe(c Container) Description {
	return Description{Container: c, Task: c.Labels[LabelTask], Profile: c.Labels[LabelProfile], Root: m.opts.RootDescription}
}

// lostError returns the error for a command whose end is unknown. why is the cause. It also tries to repair the connection
// for later commands.
func (s *Sandbox) lostError(ctx context.Context, t *requestAttempt, why error) error {
	s.dropLink(t.link)
	if errors.Is(why, errFrozen) {
		return &LostError{Began: t.hasBegun(), Why: why.Error(), Container: s.manager.inspectState(ctx, t.link.id)}
	}
	now := s.awaitSettled(ctx, t.link)
	s.endLeftovers(ctx, t, now)
	return &LostError{Began: t.hasBegun(), Why: why.Error(), Container: now}
}

// endLeftovers kills the remaining processes of a command whose helper has died. Without their helper, they would run for
// ever. It uses a new connection. It ignores errors, because the next command will have the same errors and report them.
func (s *Sandbox) endLeftovers(ctx context.Context, t *requestAttempt, c Container) {
	l, err := s.ensureLink(ctx)
	// If the container was restarted, the pid may belong to another process.
	same := c.State == Running && c.ID == t.link.id && c.Started.Before(t.start)
	if err == nil && same && t.hasBegun() && l.id == t.link.id {
		ask := &requestAttempt{sandbox: s, link: l, open: mux.Open{Op: mux.OpKillLeftovers, PID: t.channel.PID()}, request: Request{Timeout: quickRequestTimeout}}
		_, _ = ask.run(ctx)
	}
}

// removalTime is how long awaitSettled waits for the removal of a container that has ended.
const removalTime = 400 * time.Millisecond

// awaitSettled returns the state of a container whose helper has ended. The engine may report an ended container as running
// for a moment. So awaitSettled accepts the state Running only when it can start the helper again.
func (s *Sandbox) awaitSettled(ctx context.Context, l *helperLink) Container {
	limit := time.Now().Add(settleTimeout)
	var ended time.Time
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		now := s.manager.inspectState(ctx, l.id)
		if now.State == Exited && ended.IsZero() {
			ended = time.Now()
		}
		switch {
		// Wait, because docker rm -f kills the container before it removes it.
		case now.State == Exited && time.Since(ended) < removalTime:
		case now.State != Running && now.State != Removing, time.Now().After(limit):
			return now
		case now.State == Running:
			if again, err := s.manager.connect(ctx, now); err == nil {
				again.close()
				return now
			}
		}
		if !pause.For(ctx, wait) {
			return now
		}
	}
}

// dropLink closes a link that doesn't work, so that the next command makes a new one.
func (s *Sandbox) dropLink(l *helperLink) {
	s.mu.Lock()
	if s.link == l {
		s.link = nil
	}
	s.mu.Unlock()
	l.close()
}

// faultError returns the error for a fault that the helper has reported.
func faultError(end mux.End) error {
	switch end.Fault {
	case mux.NoFault, mux.NotBegun:
		return nil
	case mux.NoJob:
		return fmt.Errorf("%w: %s", ErrNoJob, end.Text)
	case mux.Refused:
	}
	return errors.New(end.Text)
}
