package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/sandbox/mux"
)

const (
	// killGrace is the time from SIGTERM to SIGKILL after the time limit or a cancellation.
	killGrace = 2 * time.Second
	// watchInterval is how often the connection of a running command is checked. If the helper has been silent for
	// askEngineDelay, the check asks the engine for the reason.
	watchInterval  = time.Second
	askEngineDelay = 3 * time.Second
	// endTimeout is how long the helper may need to end a command's process tree, after the command's time limit and grace.
	// After that, the connection is closed.
	endTimeout = 8 * time.Second
)

// silenceTimeout is how long the helper may be silent in a running container before its command counts as lost. The time is
// long, because the machine may only be busy.
var silenceTimeout = 30 * time.Second

// Exit codes in a [Result] that come from the sandbox and not from the command.
const (
	CodeTimedOut    = 124
	CodeInterrupted = 130
)

// Exec runs a command and returns how it ended. A non-zero exit code is not an error. When ctx ends, Exec ends the command's
// whole process tree, and sets Interrupted in the Result. A shell line (Request.Command) starts with the directory and the
// exported variables of the shell line before it. A shell line that is killed or calls exit does not change them.
//
// The error is a *LostError if the end of the command is unknown. If the command was not started, the error wraps [ErrGone],
// [ErrNoEngine] or [ErrClosed].
func (s *Sandbox) Exec(ctx context.Context, req Request) (Result, error) {
	if err := req.validate(); err != nil {
		return Result{}, err
	}
	begin := time.Now()
	asksRoot := s.addNoRootHint(&req)
	end, err := s.request(ctx, req, func() mux.Open { return s.openMessage(req, mux.OpRun) })
	end.Code, end.OOM = shellExitCode(end), end.OOM && end.Signal == int(unix.SIGKILL)
	res := Result{end, time.Since(begin)}
	switch {
	case errors.Is(err, ErrLost):
		return res, err
	case err != nil && ctx.Err() != nil: // The caller gave up before the command was started.
		return Result{mux.End{Code: CodeInterrupted, Interrupted: true}, res.Duration}, nil
	case err != nil:
		return Result{}, err
	}
	if to := cmp.Or(req.Stderr, req.Stdout); end.Fault == mux.NotBegun && to != nil {
		fmt.Fprintln(to, end.Text)
	}
	if req.Command != "" && end.Dir != "" {
		s.mu.Lock()
		s.dir = end.Dir
		s.mu.Unlock()
	}
	asksRoot(res.Code)
	return res, nil
}

// request sends a request to the helper and returns how it ended. If the connection is lost, it sends the request once more,
// but only if the request had no effect or may be repeated.
func (s *Sandbox) request(ctx context.Context, req Request, open func() mux.Open) (end mux.End, err error) {
	exit, err := s.beginCommand()
	if err != nil {
		return end, err
	}
	defer exit()
	for try := 0; ; try++ {
		l, err := s.ensureLink(ctx)
		if err != nil {
			return end, err
		}
		t := &requestAttempt{sandbox: s, link: l, open: open(), request: req, start: time.Now()}
		end, err := t.run(ctx)
		switch {
		case err == nil:
			return end, faultError(end)
		case try == 0 && ctx.Err() == nil && (!t.mayHaveBeenSent() || req.Repeatable && !t.inputRead):
			s.dropLink(l)
			if t.hasBegun() {
				s.endLeftovers(ctx, t, s.awaitSettled(ctx, l))
			}
			s.manager.opts.warn("a command is run again after: " + err.Error())
		case !t.mayHaveBeenSent(), t.isTransfer() && (l.alive() || t.open.Op != mux.OpStart):
			return end, err
		default:
			return end, s.lostError(ctx, t, err)
		}
	}
}

// needsRootTexts are parts of messages that programs print when they need root.
var needsRootTexts = []string{"ermission denied", "peration not permitted", "re you root", "must be root", "superuser", "no new privileges"}

// addNoRootHint prints Options.NoRootHint after a command that failed as if it needed root, once for each sandbox. It replaces
// the writers of req to see the output. The caller calls ended with the exit code when the command has ended.
func (s *Sandbox) addNoRootHint(req *Request) (ended func(code int)) {
	line := s.manager.opts.NoRootHint
	if line == "" || req.TTY || s.noRootPrinted.Load() {
		return func(int) {}
	}
	var out, errs tailBuffer
	to := cmp.Or(req.Stderr, req.Stdout, io.Discard)
	req.Stdout = io.MultiWriter(cmp.Or(req.Stdout, io.Discard), &out)
	if req.Stderr != nil {
		req.Stderr = io.MultiWriter(req.Stderr, &errs)
	}
	return func(code int) {
		text := out.String() + errs.String()
		needs := slices.ContainsFunc(needsRootTexts, func(t string) bool { return strings.Contains(text, t) })
		if code != 0 && needs && s.noRootPrinted.CompareAndSwap(false, true) {
			fmt.Fprintln(to, line)
		}
	}
}

func (r *Request) validate() error {
	if (r.Command == "") == (len(r.Argv) == 0) {
		return &OptionError{Name: "command", Value: r.Command, Want: "either a line for the shell or a list of arguments"}
	}
	for name := range r.Env {
		if !mux.ValidName(name) {
			return &OptionError{Name: "environment", Value: name, Want: "the name of a variable"}
		}
	}
	return nil
}

// requestAttempt is one try to send a request to the helper and to wait for its end.
type requestAttempt struct {
	sandbox *Sandbox
	link    *helperLink
	open    mux.Open
	request Request // The request with its streams.

	start            time.Time
	channel          *mux.Channel // Channel of the request; nil if the request was not sent.
	inputRead        bool         // Whether some standard input was read, so that the request can't be sent again.
	silenceExplained bool
}

// mayHaveBeenSent reports whether the helper may have received the request.
func (t *requestAttempt) mayHaveBeenSent() bool { return t.channel != nil }

func (t *requestAttempt) hasBegun() bool { return t.channel != nil && t.channel.PID() > 0 }

// isTransfer reports whether the request copies data or controls a background command. Unlike a command, such a request ends
// at the first error of one of its streams.
func (t *requestAttempt) isTransfer() bool { return t.open.Op != mux.OpRun }

// run sends the request and returns how it ended. An error means that the end is unknown, or that the helper has refused the
// request.
func (t *requestAttempt) run(ctx context.Context) (mux.End, error) {
	st, err := t.link.client.Open(t.open)
	if err != nil {
		return mux.End{}, err
	}
	t.channel = st
	st.ForwardSizes(t.request.Resizes)
	written := st.CopyOutputs(t.request.Stdout, t.request.Stderr, func(error) {})
	err = t.awaitEnd(ctx, st)
	if wrote := written(); err == nil && t.isTransfer() { // Ignore a writer's error for a command, which continues without a reader.
		err = wrote
	}
	if err != nil {
		return mux.End{}, err
	}
	end, err := st.End()
	if err != nil {
		return mux.End{}, fmt.Errorf("the connection to the helper ended: %w", err)
	}
	return end, nil
}

// openMessage converts a request to the message that opens a channel to the helper.
func (s *Sandbox) openMessage(req Request, op mux.Op) mux.Open {
	timeout := req.Timeout
	if timeout == 0 && op == mux.OpRun {
		timeout = s.manager.opts.Timeout
	}
	o := mux.Open{
		Op: op, Argv: req.Argv, Command: req.Command, Dir: req.Dir, Env: req.Env, Input: req.Stdin != nil, SplitErrors: req.Stderr != nil && !req.TTY,
		TTY: req.TTY, Columns: req.Size.Columns, Rows: req.Size.Rows, Timeout: max(0, timeout.Milliseconds()),
		Grace: killGrace.Milliseconds(),
	}
	if timeout > 0 {
		o.Timeout = max(1, o.Timeout)
	}
	if req.Command == "" {
		return o
	}
	s.mu.Lock()
	o.Session, o.Shell, o.FirstDir = s.manager.opts.Session, s.manager.opts.Shell, s.dir
	fresh := s.mustForward
	s.mustForward = false
	s.mu.Unlock()
	o.Forward = forwardedVariables(s.manager.opts)
	if fresh { // The session in the helper may have older values of the forwarded variables.
		o.Env = lo.Assign(o.Forward, req.Env)
	}
	return o
}

// shellExitCode returns the exit code with which a shell would report the end of a command.
func shellExitCode(end mux.End) int {
	switch {
	case end.TimedOut:
		return CodeTimedOut
	case end.Interrupted:
		return CodeInterrupted
	case end.Signal > 0:
		return 128 + end.Signal
	}
	return end.Code
}

// awaitEnd waits for the end of a request. Meanwhile it passes the input and the cancellation of ctx to the helper. An error
// means that the end of the request is unknown. For a transfer, an error can also mean that its input could not be read, or that
// ctx was canceled.
func (t *requestAttempt) awaitEnd(ctx context.Context, st *mux.Channel) error {
	var late <-chan time.Time
	if timeout := cmp.Or(t.request.Timeout, t.sandbox.manager.opts.Timeout); timeout > 0 {
		late = time.After(timeout + killGrace + endTimeout)
	}
	tick := time.Tick(watchInterval)
	started, cancelled := st.Begun(), ctx.Done()
	kill := guard.WrapFunc("cancelling a request", func() { _ = st.Send(mux.KindKill, mux.EncodeNumber(uint32(killGrace.Milliseconds()))) })
	unread := make(chan error, 1) // Receives an error of reading the input, which ends a transfer.
	feed := func() {
		st.FeedInput(t.request.Stdin, func(err error) bool {
			if t.isTransfer() {
				unread <- err
				kill()
			}
			return !t.isTransfer()
		})
	}
	if t.isTransfer() && t.request.Stdin != nil {
		feed()
	}
	for {
		select {
		case <-st.Done():
			select {
			case err := <-unread:
				return err
			default:
			}
			if t.isTransfer() {
				return context.Cause(ctx)
			}
			return nil
		case <-started:
			started = nil
			if t.request.Stdin != nil {
				t.inputRead = true
				feed()
			}
		case <-cancelled:
			cancelled, late = nil, time.After(killGrace+endTimeout)
			go kill()
		case <-late:
			t.link.close()
			return errors.New("the helper does not end the command")
		case <-tick:
			if err := t.checkHelper(ctx); err != nil {
				t.link.close() // The helper may be gone while its socket still exists, so close the connection.
				return err
			}
		}
	}
}

// checkHelper asks the engine why the helper is silent, and returns an error if the command is lost. A paused container is
// not an error, because its commands continue later.
func (t *requestAttempt) checkHelper(ctx context.Context) error {
	c := t.link.client
	if c.SinceLastFrame() < watchInterval/2 {
		return nil
	}
	c.Ping()
	if c.SinceLastFrame() < askEngineDelay {
		t.silenceExplained = false
		return nil
	}
	now := t.sandbox.manager.inspectState(ctx, t.link.id)
	first := !t.silenceExplained && now.State != ""
	t.silenceExplained = t.silenceExplained || first
	switch {
	case now.State == "":
	case now.State == Paused && first:
		t.sandbox.manager.opts.warn(fmt.Sprintf("the container %s is paused, and the command with it: docker unpause %s", shortID(t.link.id), now.Name))
	case now.State == Paused:
	case now.State != Running:
		return errors.New(describeState(now))
	// Ask the helper again, because the engine may have hung and so delayed this check.
	case c.SinceLastFrame() > silenceTimeout && !c.AnswersWithin(watchInterval):
		return fmt.Errorf("the helper has not answered for %v", silenceTimeout)
	case first:
		other, err := t.sandbox.manager.connect(ctx, now)
		if errors.Is(err, errFrozen) {
			return err
		}
		other.close()
	}
	return nil
}

// transfer sends a request that copies data or controls background commands. It has no time limit.
func (s *Sandbox) transfer(ctx context.Context, open mux.Open, in io.Reader, out io.Writer) (mux.End, error) {
	req := Request{Stdin: in, Stdout: out, Timeout: -1}
	return s.request(ctx, req, func() mux.Open { return open })
}

// JobOutput copies the kept output of a background command to w, and returns the command's state. If follow is true, it
// continues until the command ends.
func (s *Sandbox) JobOutput(ctx context.Context, id string, follow bool, w io.Writer) (Job, error) {
	end, err := s.transfer(ctx, mux.Open{Op: mux.OpOutput, Job: id, Follow: follow}, nil, w)
	return lo.FirstOrEmpty(end.Jobs), err
}

// Start starts a background command, which outlives this process. The helper keeps the newest 200,000 bytes of its output. Start
// ignores the streams and the terminal of the request.
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

// Kill ends the whole process tree of a background command: SIGTERM first, and SIGKILL two seconds later.
func (s *Sandbox) Kill(ctx context.Context, id string) (Job, error) {
	end, err := s.transfer(ctx, mux.Open{Op: mux.OpKill, Job: id, Grace: killGrace.Milliseconds()}, nil, nil)
	if err == nil && end.Survivors > 0 {
		err = fmt.Errorf("cannot end all of %s: %d of its processes are still there", id, end.Survivors)
	}
	return lo.FirstOrEmpty(end.Jobs), err
}

// PutTree unpacks a tar archive below a directory of the sandbox. It unpacks no entry outside of that directory.
func (s *Sandbox) PutTree(ctx context.Context, dir string, tar io.Reader) error {
	_, err := s.transfer(ctx, mux.Open{Op: mux.OpPutTree, Path: dir}, tar, nil)
	return err
}

// GetTree packs a path of the sandbox into a tar archive. The sandbox may be hostile: don't trust the names and links in the
// archive.
func (s *Sandbox) GetTree(ctx context.Context, path string, tar io.Writer) error {
	_, err := s.transfer(ctx, mux.Open{Op: mux.OpGetTree, Path: path}, nil, tar)
	return err
}
