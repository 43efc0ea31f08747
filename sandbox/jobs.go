package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"hinit/internal/guard"
	"hinit/sandbox/mux"
)

func jobOf(j Job) Job {
	if j.Signal > 0 {
		j.Code = 128 + j.Signal
	}
	return j
}

// Start begins a background command. It survives this process. Its output is kept inside the sandbox, the newest 200,000 bytes
// of it. Streams and terminal of the request are not used.
func (s *Sandbox) Start(ctx context.Context, req Request) (Job, error) {
	if err := req.check(); err != nil {
		return Job{}, err
	}
	exit, err := s.enter()
	if err != nil {
		return Job{}, err
	}
	defer exit()
	for try := 0; ; try++ {
		l, err := s.ready(ctx)
		if err != nil {
			return Job{}, err
		}
		open := s.openFor(req, mux.OpStart)
		open.Input, open.Apart, open.TTY = false, false, false
		end, err := s.ask(ctx, l, open)
		switch {
		case errors.Is(err, mux.ErrNotSent) && try == 0:
			s.drop(l)
		case err != nil && !l.alive():
			return Job{}, s.lost(ctx, &attempt{l: l}, err)
		case err != nil:
			return Job{}, err
		case end.Fault != mux.NoFault || len(end.Jobs) == 0:
			return Job{}, fmt.Errorf("cannot start the command: %s", end.Text)
		default:
			return jobOf(end.Jobs[0]), nil
		}
	}
}

// jobs lists the background commands, of all processes. Those that have ended are kept for half an hour.
func (s *Sandbox) jobs(ctx context.Context, l *link) (jobs []Job, clients int, err error) {
	end, err := s.ask(ctx, l, mux.Open{Op: mux.OpJobs})
	jobs = make([]Job, 0, len(end.Jobs))
	for _, j := range end.Jobs {
		jobs = append(jobs, jobOf(j))
	}
	return jobs, end.Clients, err
}

// Kill ends the whole tree of a background command: TERM, and KILL after the grace, for which 0 is two seconds.
func (s *Sandbox) Kill(ctx context.Context, id string, grace time.Duration) (Job, error) {
	end, err := s.transfer(ctx, mux.Open{Op: mux.OpKill, Job: id, Grace: cmp.Or(grace, defaultGrace).Milliseconds()}, nil, nil)
	if err != nil || len(end.Jobs) == 0 {
		return Job{}, err
	}
	if end.Survivors > 0 {
		err = fmt.Errorf("cannot end all of %s: %d of its processes are still there", id, end.Survivors)
	}
	return jobOf(end.Jobs[0]), err
}

// PutTree unpacks a tar archive below a directory of the sandbox. Nothing in it gets outside of that directory.
func (s *Sandbox) PutTree(ctx context.Context, dir string, tar io.Reader) error {
	_, err := s.transfer(ctx, mux.Open{Op: mux.OpPutTree, Path: dir}, tar, nil)
	return err
}

// GetTree packs a path into a tar archive. Whoever unpacks it must not trust the names and links in it.
func (s *Sandbox) GetTree(ctx context.Context, path string, tar io.Writer) error {
	_, err := s.transfer(ctx, mux.Open{Op: mux.OpGetTree, Path: path}, nil, tar)
	return err
}

// transfer makes a request that has streams.
func (s *Sandbox) transfer(ctx context.Context, open mux.Open, in io.Reader, out io.Writer) (mux.End, error) {
	exit, err := s.enter()
	if err != nil {
		return mux.End{}, err
	}
	defer exit()
	l, err := s.ready(ctx)
	if err != nil {
		return mux.End{}, err
	}
	st, err := l.c.Open(open)
	if errors.Is(err, mux.ErrNotSent) { // the connection ended while nobody looked
		s.drop(l)
		if l, err = s.ready(ctx); err == nil {
			st, err = l.c.Open(open)
		}
	}
	if err != nil {
		return mux.End{}, err
	}
	bad := make(chan error, 1)
	if in != nil {
		guard.Go("sending a file", func() {
			if err := st.SendInput(in); err != nil {
				bad <- err
			}
		})
	}
	written := make(chan error, 1)
	guard.Go("receiving a file", func() {
		_, err := st.Output.WriteTo(out)
		written <- err
	})
	var failed error
	var late <-chan time.Time
	cancel := func(err error) {
		failed, late = err, time.After(overtime)
		guard.Go("cancelling a transfer", func() { _ = st.Send(mux.KindKill, mux.Number(0)) })
	}
	stop := ctx.Done()
	for done := false; !done; {
		select {
		case <-st.Done():
			done = true
		case <-stop:
			stop = nil
			cancel(context.Cause(ctx))
		case err := <-bad:
			cancel(err)
		case <-late: // it does not end the request
			s.drop(l)
		}
	}
	wrote := <-written
	end, err := st.End()
	switch {
	case failed != nil:
		return mux.End{}, failed
	case err != nil:
		return mux.End{}, err
	case wrote != nil:
		return mux.End{}, wrote
	}
	return end, faultError(end)
}
