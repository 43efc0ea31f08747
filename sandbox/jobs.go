package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/samber/lo"

	"hinit/sandbox/mux"
)

// Start starts a background command, which outlives this process. The helper keeps the newest 200,000 bytes of its output. The
// streams and the terminal of the request are ignored.
func (s *Sandbox) Start(ctx context.Context, req Request) (Job, error) {
	if err := req.validate(); err != nil {
		return Job{}, err
	}
	open := s.openMessage(req, mux.OpStart)
	open.Input, open.SplitErrors, open.TTY = false, false, false
	end, err := s.transfer(ctx, open, nil, nil)
	if err == nil && len(end.Jobs) == 0 {
		err = fmt.Errorf("cannot start the command: %s", end.Text)
	}
	return lo.FirstOrEmpty(end.Jobs), err
}

// Kill ends the whole process tree of a background command: SIGTERM first, and SIGKILL after the grace period. A grace of 0 means
// two seconds.
func (s *Sandbox) Kill(ctx context.Context, id string, grace time.Duration) (Job, error) {
	end, err := s.transfer(ctx, mux.Open{Op: mux.OpKill, Job: id, Grace: cmp.Or(grace, defaultGrace).Milliseconds()}, nil, nil)
	if err == nil && end.Survivors > 0 {
		err = fmt.Errorf("cannot end all of %s: %d of its processes are still there", id, end.Survivors)
	}
	return lo.FirstOrEmpty(end.Jobs), err
}

// PutTree unpacks a tar archive below a directory of the sandbox. Entries can't escape from that directory.
func (s *Sandbox) PutTree(ctx context.Context, dir string, tar io.Reader) error {
	_, err := s.transfer(ctx, mux.Open{Op: mux.OpPutTree, Path: dir}, tar, nil)
	return err
}

// GetTree packs a path of the sandbox into a tar archive. Do not trust the names and links in it.
func (s *Sandbox) GetTree(ctx context.Context, path string, tar io.Writer) error {
	_, err := s.transfer(ctx, mux.Open{Op: mux.OpGetTree, Path: path}, nil, tar)
	return err
}
