package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"hinit/internal/guard"
	"hinit/sandbox/mux"
)

// Sandbox is one container as this process uses it.
type Sandbox struct {
	m       *Manager
	key     Key
	labels  map[string]string
	adopted bool
	persist bool
	session string
	turn    chan struct{} // held while the link is mended

	mu       sync.Mutex
	id, name string // of the container; "" after Cleanup
	gone     string // its id, after Cleanup
	spec     *Spec  // how it is made again
	lease    *lease
	link     *link
	dir      string // tracked, or where the first command is to begin
	known    bool   // dir is where a command or a caller has left the session
	moved    bool   // by a caller: a session that is shared does not know yet
	fresh    bool   // the values of forwarded variables have not been sent since the container was attached
	running  int    // commands
	told     bool   // what Options.NoRoot says
	used     time.Time
	closed   bool
	leaving  chan struct{} // closed when Cleanup is done; nil before
}

// ID returns the id of the container at this moment, "" after Cleanup.
func (s *Sandbox) ID() string {
	id, _ := s.container()
	return id
}

func (s *Sandbox) container() (id, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.name
}

// Labels returns the three labels by which it is found.
func (s *Sandbox) Labels() map[string]string { return maps.Clone(s.findLabels()) }

// Key returns the key.
func (s *Sandbox) Key() Key { return s.key }

// PersistsFiles reports whether what commands write to the home and working directories stays with the host.
func (s *Sandbox) PersistsFiles() bool { return s.m.opts.PersistFS }

// Dir returns the tracked working directory.
func (s *Sandbox) Dir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dir
}

// SetDir changes the tracked working directory.
func (s *Sandbox) SetDir(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dir, s.known, s.moved = dir, true, true
}

func (s *Sandbox) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = time.Now()
}

// idleSince returns when it was used last, and whether it is in use now.
func (s *Sandbox) idleSince() (since time.Time, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.running > 0
}

// jobsRun reports whether a background command is running.
func (s *Sandbox) jobsRun() bool {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if !l.alive() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), helloTime)
	defer cancel()
	jobs, err := s.jobs(ctx, l)
	for _, j := range jobs {
		if j.Running {
			return true
		}
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// enter counts a command.
func (s *Sandbox) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	s.running++
	return nil
}

func (s *Sandbox) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.used = time.Now()
}

// disconnect ends the commands that this process runs there, and keeps others from beginning.
func (s *Sandbox) disconnect(error) {
	s.mu.Lock()
	l := s.link
	s.closed, s.link = true, nil
	s.gone, s.id, s.name = s.id, "", ""
	s.lease.release()
	s.lease = nil
	s.mu.Unlock()
	l.close()
}

// Cleanup gives the sandbox up: with Options.Persist and without force the container stays as it is; else it is stopped and
// removed, in a goroutine of its own that [Sandbox.Wait] waits for. Without a container it does nothing.
func (s *Sandbox) Cleanup(force bool) error {
	if s == nil || s.m == nil {
		return nil
	}
	s.m.leave(s)
	id, name := s.container()
	if id == "" {
		return nil
	}
	remove := force || !s.persist
	if !remove || s.adopted && !force {
		s.disconnect(ErrClosed)
		return nil
	}
	done := make(chan struct{})
	s.mu.Lock()
	s.leaving = done
	s.mu.Unlock()
	s.disconnect(ErrClosed)
	s.m.mu.Lock()
	s.m.departing[s] = true
	s.m.mu.Unlock()
	guard.Go("removing a sandbox", func() {
		defer close(done)
		defer func() {
			s.m.mu.Lock()
			delete(s.m.departing, s)
			s.m.mu.Unlock()
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 2*stopPatience)
		defer cancel()
		unlock, err := s.m.store.lock(ctx, s.labels, s.m.opts.warn)
		if err != nil {
			s.m.opts.warn(err.Error())
			return
		}
		defer unlock()
		crash("remove")
		if s.m.destroy(ctx, id, name) == nil && !s.m.opts.PersistFS && !s.adopted {
			s.m.removeDirs(s.key)
		}
	})
	return nil
}

// Wait waits for what Cleanup began, and reports whether it is done.
func (s *Sandbox) Wait(limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return s.wait(ctx)
}

func (s *Sandbox) wait(ctx context.Context) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	leaving := s.leaving
	s.mu.Unlock()
	if leaving == nil {
		return true
	}
	select {
	case <-leaving:
		return true
	case <-ctx.Done():
		return false
	}
}

// Describe says what is known. It asks the engine and the program inside.
func (s *Sandbox) Describe(ctx context.Context) (Description, error) {
	id, _ := s.container()
	if id == "" {
		return Description{}, ErrClosed
	}
	c, err := s.m.engine.Inspect(ctx, id)
	if err != nil {
		return Description{}, err
	}
	d := s.m.describe(c)
	s.mu.Lock()
	d.Dir, d.Commands, d.IdleSince, d.Persist = s.dir, s.running, s.used, s.persist
	s.mu.Unlock()
	if c.State == Running {
		l, err := s.ready(ctx)
		if err != nil {
			return d, err
		}
		d.Exec, d.Reason = l.mode, l.reason
		if d.Jobs, err = s.jobs(ctx, l); err != nil {
			return d, err
		}
	}
	return d, nil
}

// describe says what the engine knows of a container.
func (m *Manager) describe(c Container) Description {
	return Description{
		Container: c.ID, Name: c.Name, Image: c.Image, Task: c.Labels[LabelTask], Profile: c.Labels[LabelProfile], Labels: c.Labels,
		State: c.State, Created: c.Created, Clients: m.store.leases(c.ID), Persist: c.Labels[LabelEphemeral] == "", User: c.User, Root: m.opts.Root,
	}
}

// lost makes the error for a command whose end is not known, and brings the sandbox back if it can.
func (s *Sandbox) lost(ctx context.Context, t *attempt, why error) error {
	s.drop(t.l)
	e := &LostError{Began: t.began, Why: why.Error(), Container: s.settled(ctx, t.l)}
	e.Recovered = s.endLeft(ctx, t, e.Container) == nil
	return e
}

// endLeft connects again, and ends what is left of a command whose program inside has died: nobody else will.
func (s *Sandbox) endLeft(ctx context.Context, t *attempt, c Container) error {
	l, err := s.ready(ctx)
	same := c.State == Running && c.ID == t.l.id && c.Started.Before(t.start) // else its processes are gone, and their numbers are others'
	if err == nil && same && t.pid > 0 && l.id == t.l.id {
		_, _ = s.ask(ctx, l, mux.Open{Op: mux.OpBury, PID: t.pid})
	}
	return err
}

// settled asks the engine what a container is in whose program inside has ended. That one runs it is believed only when the program
// can be started in it again: the engine takes its time to notice an end.
func (s *Sandbox) settled(ctx context.Context, l *link) Container {
	limit := time.Now().Add(settleTime)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		now := s.m.state(ctx, l.id)
		switch {
		case now.State != Running && now.State != Removing, time.Now().After(limit):
			return now
		case now.State == Running:
			if again, err := s.m.connect(ctx, now); err == nil {
				again.close()
				return now
			}
		}
		select {
		case <-ctx.Done():
			return now
		case <-time.After(wait):
		}
	}
}

// drop gives up a link that doesn't work.
func (s *Sandbox) drop(l *link) {
	s.mu.Lock()
	if s.link == l {
		s.link = nil
	}
	s.mu.Unlock()
	l.close()
}

// ask opens a channel for a request that can be made again, and returns its end. Output goes to w.
func (s *Sandbox) ask(ctx context.Context, l *link, open mux.Open) (mux.End, error) {
	st, err := l.c.Open(open)
	if err != nil {
		return mux.End{}, err
	}
	select {
	case <-st.Done():
	case <-ctx.Done():
		guard.Go("cancelling a request", func() { _ = st.Send(mux.KindKill, mux.Number(0)) })
		return mux.End{}, context.Cause(ctx)
	}
	end, err := st.End()
	if err == nil {
		err = faultError(end)
	}
	return end, err
}

// faultError is what the program inside has refused.
func faultError(end mux.End) error {
	switch end.Fault {
	case mux.NoFault, mux.NotBegun:
		return nil
	case mux.NoJob:
		return fmt.Errorf("%w: %s", ErrNoJob, end.Text)
	case mux.FileFault, mux.BadOpen:
	}
	return errors.New(end.Text)
}
