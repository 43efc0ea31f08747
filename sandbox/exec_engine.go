package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/internal/guard"
	"hinit/sandbox/mux"
)

// plain runs a command by an exec of the engine: where the program inside can't run, and for another user. Its tree can be ended only
// where the image has a shell, and then its process group only.
func (t *attempt) plain(ctx context.Context) (Result, error) {
	spec, session := t.s.plainSpec(ctx, t.l, t.req)
	a, err := t.s.m.engine.Exec(ctx, t.l.id, spec)
	if err != nil {
		t.sent = !errors.Is(err, ErrGone) && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNoEngine)
		return Result{}, err
	}
	t.sent, t.began = true, true
	defer a.Close()
	ended := make(chan error, 1)
	guard.Go("copying a command's output", func() {
		stdout := t.req.Stdout
		if stdout == nil {
			stdout = io.Discard
		}
		stderr := t.req.Stderr
		if stderr == nil {
			stdout = &together{w: stdout}
			stderr = stdout
		}
		ended <- a.Copy(stdout, stderr)
	})
	if t.req.Stdin != nil {
		t.fed = true
		guard.Go("copying a command's input", func() { _, _ = io.Copy(a, t.req.Stdin); _ = a.CloseWrite() })
	}
	res, err := t.followPlain(ctx, a, ended, spec)
	if err != nil {
		return Result{}, err
	}
	if session != nil && res.Code != CodeTimedOut && res.Code != CodeInterrupted {
		session.note(ctx)
	}
	return res, nil
}

// together lets two streams write to one writer.
type together struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *together) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(p)
}

func (t *attempt) followPlain(ctx context.Context, a Attachment, ended <-chan error, spec ExecSpec) (Result, error) {
	timeout := cmp.Or(t.req.Timeout, t.s.m.opts.Timeout)
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	var res Result
	stop := ctx.Done()
	give := func(code int) {
		late, stop = nil, nil
		res.Code = code
		res.Survivors = t.s.killPlain(ctx, t.l, spec)
		_ = a.Close()
	}
	for {
		select {
		case err := <-ended:
			if res.Code != 0 {
				return res, nil
			}
			return t.plainEnd(ctx, a, err)
		case size, ok := <-t.req.Resizes:
			if !ok {
				t.req.Resizes = nil
				continue
			}
			_ = a.Resize(ctx, size)
		case <-late:
			res.TimedOut = true
			give(CodeTimedOut)
		case <-stop:
			res.Interrupted = true
			give(CodeInterrupted)
		}
	}
}

// plainEnd asks the engine how a command has ended, and whether it was the container that did.
func (t *attempt) plainEnd(ctx context.Context, a Attachment, copied error) (Result, error) {
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		code, running, err := a.Exit(ask)
		switch {
		case err != nil:
			return Result{}, err
		case running: // its output has ended before it has
			select {
			case <-time.After(wait):
			case <-ask.Done():
				return Result{}, errors.Join(copied, errors.New("its output has ended, and it has not"))
			}
			continue
		case code == 137 || copied != nil: // killed, as everything in a container that ends; the engine takes its time to say so
			for range 10 {
				if now := t.s.m.state(ctx, t.l.id); now.State != Running && now.State != Paused && now.State != "" {
					return Result{}, errors.New(describeState(now))
				}
				<-time.After(100 * time.Millisecond)
			}
		}
		res := Result{Code: code}
		if code > 128 && code < 128+65 {
			res.Signal = code - 128
		}
		return res, nil
	}
}

// plainSession is the state of commands of the shell, which the program inside keeps elsewhere.
type plainSession struct {
	s     *Sandbox
	l     *link
	dir   string
	where string
}

// plainSpec makes the exec of a request.
func (s *Sandbox) plainSpec(ctx context.Context, l *link, req Request) (ExecSpec, *plainSession) {
	spec := ExecSpec{Argv: req.Argv, Dir: req.Dir, User: req.User, Stdin: req.Stdin != nil, TTY: req.TTY, Size: req.Size}
	if req.Command == "" {
		spec.Env = environ(req.Env)
		return spec, nil
	}
	open := s.openFor(req, mux.OpRun)
	shell, bash := s.plainShell(ctx, l)
	session := &plainSession{s: s, l: l, dir: "/tmp/.hinit-" + s.session}
	if err := session.begin(ctx, shell, bash, open); err != nil {
		session.dir = ""
	}
	tag := randomHex(4)
	script := mux.Script{Bash: bash, State: session.dir, Command: req.Command, Dir: cmp.Or(req.Dir, open.Dir, open.Begin), Env: open.Env}
	if session.dir != "" {
		session.where = session.dir + "/" + mux.WhereFile
		script.Exports, script.Where = session.dir+"/"+mux.ExportsFile, session.where
	}
	text := fmt.Sprintf("echo $$ > /tmp/.hinit-pid-%s 2>/dev/null\n%s", tag, script.Text())
	spec.Argv = []string{shell, "-c", text, "hinit-" + tag}
	if session.dir == "" {
		spec.Argv = []string{shell, "-l", "-c", text, "hinit-" + tag}
	}
	spec.Dir = ""
	spec.Env = environ(mux.CommandEnv(open.Env))
	if session.dir == "" {
		spec.Env = append(spec.Env, environ(open.Forward)...)
		return spec, nil
	}
	return spec, session
}

func environ(env map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// plainShell finds the shell, once for a link.
func (s *Sandbox) plainShell(ctx context.Context, l *link) (string, bool) {
	if name := s.m.opts.Shell; name != "" {
		return name, strings.HasSuffix(name, "bash")
	}
	if code, err := s.plainRun(ctx, l, nil, "bash", "-c", ":"); err == nil && code == 0 {
		return "bash", true
	}
	return "sh", false
}

// plainRun runs a command of this package's own, and drops its output.
func (s *Sandbox) plainRun(ctx context.Context, l *link, env []string, argv ...string) (int, error) {
	code, _, err := s.plainOutput(ctx, l, env, argv...)
	return code, err
}

func (s *Sandbox) plainOutput(ctx context.Context, l *link, env []string, argv ...string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	a, err := s.m.engine.Exec(ctx, l.id, ExecSpec{Argv: argv, Env: env})
	if err != nil {
		return 0, "", err
	}
	defer a.Close()
	stop := context.AfterFunc(ctx, func() { _ = a.Close() })
	defer stop()
	var out tail
	if err := a.Copy(&out, io.Discard); err != nil {
		return 0, "", err
	}
	for {
		code, running, err := a.Exit(ctx)
		if err != nil || !running {
			return code, out.String(), err
		}
		<-time.After(time.Millisecond)
	}
}

// begin takes the snapshot of a login shell, if there is none.
func (p *plainSession) begin(ctx context.Context, shell string, bash bool, open mux.Open) error {
	base := p.dir + "/" + mux.BaseFile
	text := "[ ! -f " + mux.Quote(base) + " ] || exit 0\n(umask 077; mkdir -p " + mux.Quote(p.dir) + ")\n" +
		mux.Snapshot(bash, cmp.Or(open.Begin, "~"), base+".new", p.dir+"/"+mux.WhereFile) + "mv " + mux.Quote(base+".new") + " " + mux.Quote(base) + "\n"
	code, err := p.s.plainRun(ctx, p.l, environ(open.Forward), shell, "-l", "-c", text)
	if err == nil && code != 0 {
		err = errors.New("the login shell failed")
	}
	return err
}

// note reads where a command has left the session.
func (p *plainSession) note(ctx context.Context) {
	code, out, err := p.s.plainOutput(ctx, p.l, nil, "cat", p.where)
	if err == nil && code == 0 && strings.HasPrefix(out, "/") {
		p.s.note(Request{Command: "x"}, out)
	}
}

// killPlain ends the process group of a command that wrote down its number. It returns how many processes may be left.
func (s *Sandbox) killPlain(ctx context.Context, l *link, spec ExecSpec) int {
	ctx = context.WithoutCancel(ctx)
	tag, ok := strings.CutPrefix(spec.Argv[len(spec.Argv)-1], "hinit-")
	if !ok {
		return 1
	}
	file := "/tmp/.hinit-pid-" + tag
	text := "read p < " + file + " || exit 1; rm -f " + file + "; kill -TERM -- -$p || kill -TERM $p; n=0\n" +
		"while kill -0 -- -$p 2>/dev/null && [ $n -lt 20 ]; do sleep 0.1; n=$((n+1)); done; kill -KILL -- -$p 2>/dev/null; exit 0"
	if code, err := s.plainRun(ctx, l, nil, spec.Argv[0], "-c", text); err != nil || code != 0 {
		return 1
	}
	return 0
}
