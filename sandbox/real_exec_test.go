package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRealExec checks the environment and the results of commands on a real engine.
func TestRealExec(t *testing.T) {
	_, s := newRealSandbox(t, func(o *Options) {
		o.Env = map[string]string{"SECRET": "literal", "PLAIN": "a b"}
		forwardSecret(t, o)
	})
	d, err := s.Describe(t.Context())
	if err != nil || d.Exec != ExecDirect || d.State != Running || d.Clients != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	t.Run("directory and variables are carried forward", func(t *testing.T) {
		checkOutput(t, s, "cd /tmp; export A='x y'; f() { echo f; }", "")
		checkOutput(t, s, "echo $A; pwd", "x y\n/tmp")
		if s.dir != "/tmp" {
			t.Error(s.dir)
		}
		checkOutput(t, s, "export M=$'two\\nlines \"$x\\'s\"'", "")
		checkOutput(t, s, `echo "$M"`, "two\nlines \"$x's\"")
		if _, res := runForOutput(t, s, "cd /; export A=lost; exit 7"); res.Code != 7 {
			t.Error(res)
		}
		checkOutput(t, s, "echo $A; pwd", "x y\n/tmp")
		checkOutput(t, s, "mkdir -p '/tmp/-a b'; cd -- '/tmp/-a b'; pwd", "/tmp/-a b")
		checkOutput(t, s, "pwd; cd /root", "/tmp/-a b")
	})
	t.Run("forwarded wins over literal, and is nowhere to be seen", func(t *testing.T) {
		checkOutput(t, s, "echo $SECRET $PLAIN", "hunter2 a b")
		if text := dockerCmd(t, "inspect", s.ID()) + dockerCmd(t, "top", s.ID(), "-eo", "pid,args"); strings.Contains(text, "hunter2") {
			t.Error("the value is in what the engine shows")
		}
		checkOutput(t, s, "tr '\\0' ' ' </proc/$$/cmdline | grep -c hunter[2] || true", "0")
		var out bytes.Buffer
		_, err := s.Exec(t.Context(), Request{Command: "echo $OWN", Env: map[string]string{"OWN": "x'y"}, Stdout: &out})
		if err != nil || out.String() != "x'y\n" {
			t.Errorf("%q, %v", out.String(), err)
		}
	})
	t.Run("exit codes", func(t *testing.T) {
		for command, code := range map[string]int{"exit 42": 42, "kill -KILL $$": 137, "no-such-command": 127, "/root": 126, "cd /no/such && true": 1} {
			if _, res := runForOutput(t, s, command); res.Code != code {
				t.Errorf("%s: %+v", command, res)
			}
		}
		for argv, code := range map[string]int{"no-such-command": 127, "/root": 126} {
			if res, err := s.Exec(t.Context(), Request{Argv: []string{argv}}); err != nil || res.Code != code {
				t.Errorf("%s: %+v, %v", argv, res, err)
			}
		}
		if res, err := s.Exec(t.Context(), Request{Command: "echo ran", Dir: "/no/such"}); err != nil || res.Code != 126 {
			t.Errorf("%+v, %v", res, err)
		}
	})
	t.Run("streams", func(t *testing.T) {
		var out, errs bytes.Buffer
		res, err := s.Exec(t.Context(), Request{
			Argv: []string{"sh", "-c", "cat; echo e >&2; exit 3"}, Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errs, Dir: "/tmp",
		})
		if err != nil || res.Code != 3 || out.String() != "in\n" || errs.String() != "e\n" {
			t.Errorf("%+v, %v, %q, %q", res, err, out.String(), errs.String())
		}
		checkOutput(t, s, "cat | wc -c", "0") // Without an input, standard input is /dev/null.
		out.Reset()
		_, _ = s.Exec(t.Context(), Request{Command: "for i in 1 2 3; do echo o$i; echo e$i >&2; done", Stdout: &out})
		if out.String() != "o1\ne1\no2\ne2\no3\ne3\n" {
			t.Errorf("joined streams are out of order: %q", out.String())
		}
	})
	t.Run("much of it, both ways", func(t *testing.T) {
		const size = 20 << 20
		sum := sha256.New()
		in := io.TeeReader(io.LimitReader(&noiseReader{}, size), sum)
		back := sha256.New()
		if res, err := s.Exec(t.Context(), Request{Argv: []string{"cat"}, Stdin: in, Stdout: back}); err != nil || res.Code != 0 {
			t.Fatal(res, err)
		}
		if !bytes.Equal(sum.Sum(nil), back.Sum(nil)) {
			t.Error("what came back is not what was sent")
		}
	})
	t.Run("a reader that stops does not stop others", func(t *testing.T) {
		r, w := io.Pipe()
		done := make(chan Result, 1)
		go func() {
			res, _ := s.Exec(context.Background(), Request{Argv: []string{"head", "-c", "8000000", "/dev/zero"}, Stdout: w})
			done <- res
		}()
		if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		checkOutput(t, s, "echo through", "through")
		n, _ := io.Copy(io.Discard, io.LimitReader(r, 8000000-1000))
		if res := <-done; res.Code != 0 || n != 8000000-1000 {
			t.Error(res, n)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		var out syncBuffer
		sizes := make(chan TerminalSize, 1)
		r, w := io.Pipe()
		done := make(chan Result, 1)
		go func() {
			res, err := s.Exec(context.Background(), Request{
				Argv: []string{"sh"}, TTY: true, Size: TerminalSize{Columns: 80, Rows: 24}, Resizes: sizes, Stdin: r, Stdout: &out,
			})
			if err != nil {
				t.Error(err)
			}
			done <- res
		}()
		say := func(line, answer string) {
			t.Helper()
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				t.Fatal(err)
			}
			retryUntilNil(t, func() error {
				if !strings.Contains(out.String(), answer) {
					return fmt.Errorf("no %q in %q", answer, out.String())
				}
				return nil
			})
		}
		say("stty size; tty", "24 80")
		sizes <- TerminalSize{Columns: 132, Rows: 43}
		say("until [ \"$(stty size)\" = '43 132' ]; do :; done; echo new''size", "newsize")
		say("sleep 98761", "sleep 98761")
		retryUntilNil(t, func() error {
			if checkProcessEnded(t, s.ID(), "sleep 98761") == nil {
				return errors.New("it has not begun")
			}
			return nil
		})
		if _, err := io.WriteString(w, "\x03"); err != nil {
			t.Fatal(err)
		}
		say("echo inter''rupted", "interrupted")
		if _, err := io.WriteString(w, "exit 5\n"); err != nil {
			t.Fatal(err)
		}
		if res := <-done; res.Code != 5 {
			t.Error(res)
		}
	})
	t.Run("files", func(t *testing.T) {
		checkOutput(t, s, "mkdir -p /tmp/tree/sub && echo x > /tmp/tree/sub/f && ln -s f /tmp/tree/sub/l", "")
		var tree bytes.Buffer
		if err := s.GetTree(t.Context(), "/tmp/tree", &tree); err != nil {
			t.Fatal(err)
		}
		checkOutput(t, s, "mkdir /tmp/copy", "")
		if err := s.PutTree(t.Context(), "/tmp/copy", &tree); err != nil {
			t.Fatal(err)
		}
		checkOutput(t, s, "cat /tmp/copy/tree/sub/l", "x")
	})
	t.Run("nothing is left in the image or the layer", func(t *testing.T) {
		for line := range strings.Lines(dockerCmd(t, "diff", s.ID())) {
			if strings.Contains(line, "hinit") && !strings.Contains(line, "/run/hinit") {
				t.Error(line)
			}
		}
	})
}

// syncBuffer is a buffer that can be read while another goroutine writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// noiseReader is an endless source of bytes without short repetitions.
type noiseReader struct{ n uint64 }

func (z *noiseReader) Read(p []byte) (int, error) {
	for i := range p {
		z.n = z.n*6364136223846793005 + 1442695040888963407
		p[i] = byte(z.n >> 56)
	}
	return len(p), nil
}

func topOutput(t *testing.T, id string) string {
	t.Helper()
	out, err := exec.Command("docker", "top", id, "-eo", "pid,args").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func checkProcessEnded(t *testing.T, id, what string) error {
	if text := topOutput(t, id); strings.Contains(text, what) {
		return errors.New("it runs: " + text)
	}
	return nil
}

// TestRealLeftBehind checks that leftover processes of a command survive and delay no caller.
func TestRealLeftBehind(t *testing.T) {
	_, s := newRealSandbox(t, nil)
	if out, res := runForOutput(t, s, "(while :; do echo tick; sleep 0.02; echo x >> /tmp/ticks; done) & echo started"); res.Code != 0 || !strings.HasPrefix(out, "started") && !strings.Contains(out, "tick") {
		t.Fatal(out, res)
	}
	lines := func() string { out, _ := runForOutput(t, s, "wc -l < /tmp/ticks"); return out }
	before := lines()
	retryUntilNil(t, func() error {
		if now := lines(); now == before {
			return errors.New("it has ended")
		}
		return nil
	})
}

// TestRealKill checks that all processes of a command end at its time limit, its cancellation, or
// the loss of its client.
func TestRealKill(t *testing.T) {
	m, s := newRealSandbox(t, nil)
	// tree returns a command whose processes leave their session and parents, and ignore SIGTERM.
	tree := func(n int) string {
		return fmt.Sprintf("trap '' TERM; setsid sh -c 'trap \"\" TERM; (sh -c \"trap : TERM; while :; do sleep 98765%d; done\" &) ; while :; do sleep 98765%d; done' & sleep 98765%d", n, n, n)
	}
	mark := func(n int) string { return fmt.Sprintf("98765%d", n) }
	runs := func(n int) { // runs waits until the shells run sleep, after they have set their traps.
		t.Helper()
		sleeps := regexp.MustCompile(`(?m)^\d+\s+sleep ` + mark(n) + "$")
		retryUntilNil(t, func() error {
			if c := len(sleeps.FindAllString(topOutput(t, s.ID()), -1)); c < 3 {
				return fmt.Errorf("%d run", c)
			}
			return nil
		})
	}
	t.Run("out of time", func(t *testing.T) {
		res, err := s.Exec(t.Context(), Request{Command: tree(1), Timeout: 700 * time.Millisecond})
		if err != nil || !res.TimedOut || res.Code != 124 || res.Survivors != 0 {
			t.Errorf("%+v, %v", res, err)
		}
		if err := checkProcessEnded(t, s.ID(), mark(1)); err != nil {
			t.Error(err)
		}
		var out bytes.Buffer
		res, err = s.Exec(t.Context(), Request{Command: "echo before; sleep 100", Timeout: 300 * time.Millisecond, Stdout: &out})
		if err != nil || res.Code != 124 || out.String() != "before\n" {
			t.Errorf("partial output: %+v, %v, %q", res, err, out.String())
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan Result, 1)
		go func() {
			res, err := s.Exec(ctx, Request{Command: tree(2)})
			if err != nil {
				t.Error(err)
			}
			done <- res
		}()
		runs(2)
		cancel()
		if res := <-done; !res.Interrupted || res.Code != 130 {
			t.Errorf("%+v", res)
		}
		if err := checkProcessEnded(t, s.ID(), mark(2)); err != nil {
			t.Error(err)
		}
	})
	t.Run("TERM comes first", func(t *testing.T) {
		var out bytes.Buffer
		res, err := s.Exec(t.Context(), Request{
			Command: "trap 'echo tidy; exit 0' TERM; while :; do sleep 0.05; done", Timeout: 300 * time.Millisecond, Stdout: &out,
		})
		if err != nil || res.Code != 124 || !strings.HasSuffix(out.String(), "tidy\n") {
			t.Errorf("%+v, %v, %q", res, err, out.String())
		}
	})
	t.Run("a stopped tree", func(t *testing.T) {
		res, err := s.Exec(t.Context(), Request{Command: "sleep 987657 & kill -STOP $!; kill -STOP $$", Timeout: 300 * time.Millisecond})
		if err != nil || res.Code != 124 {
			t.Errorf("%+v, %v", res, err)
		}
		if err := checkProcessEnded(t, s.ID(), "987657"); err != nil {
			t.Error(err)
		}
	})
	t.Run("background on request", func(t *testing.T) {
		job, err := s.Start(t.Context(), Request{Command: tree(3)})
		if err != nil {
			t.Fatal(err)
		}
		runs(3)
		if job, err = s.Kill(t.Context(), job.ID); err != nil || job.Running || job.Code != 137 {
			t.Errorf("%+v, %v", job, err)
		}
		if err := checkProcessEnded(t, s.ID(), mark(3)); err != nil {
			t.Error(err)
		}
		if _, err := s.Kill(t.Context(), "nobody"); !errors.Is(err, ErrNoJob) {
			t.Error(err)
		}
	})
	t.Run("the client is gone", func(t *testing.T) {
		job, err := s.Start(t.Context(), Request{Command: "sleep 987655"})
		if err != nil {
			t.Fatal(err)
		}
		client := helperProcess(t, m.opts, "hold", tree(4))
		runs(4)
		if err := client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = client.Wait()
		retryUntilNil(t, func() error { return checkProcessEnded(t, s.ID(), mark(4)) })
		if jobs, err := jobsOf(t, s); err != nil || len(jobs) == 0 || !jobs[len(jobs)-1].Running || jobs[len(jobs)-1].ID != job.ID {
			t.Errorf("%+v, %v", jobs, err)
		}
	})
}

// TestRealJobs checks that a background command outlives the process that started it, and that another process finds
// its output.
func TestRealJobs(t *testing.T) {
	m, s := newRealSandbox(t, nil)
	client := helperProcess(t, m.opts, "start", "echo begin; while [ ! -f /tmp/go ]; do sleep 0.02; done; echo end; exit 3")
	if err := client.Wait(); err != nil {
		t.Fatal(err)
	}
	jobs, err := jobsOf(t, s)
	if err != nil || len(jobs) != 1 || !jobs[0].Running {
		t.Fatalf("%+v, %v", jobs, err)
	}
	var out syncBuffer
	done := make(chan Job, 1)
	go func() {
		job, err := s.JobOutput(context.Background(), jobs[0].ID, true, &out)
		if err != nil {
			t.Error(err)
		}
		done <- job
	}()
	retryUntilNil(t, func() error {
		if out.String() != "begin\n" {
			return errors.New(out.String())
		}
		return nil
	})
	checkOutput(t, s, "touch /tmp/go", "")
	if job := <-done; job.Running || job.Code != 3 || out.String() != "begin\nend\n" || job.Output != 10 {
		t.Errorf("%+v, %q", job, out.String())
	}
	flood, err := s.Start(t.Context(), Request{Argv: []string{"head", "-c", "1000000", "/dev/zero"}})
	if err != nil {
		t.Fatal(err)
	}
	var kept bytes.Buffer
	job, err := s.JobOutput(t.Context(), flood.ID, true, &kept)
	if err != nil || job.Output != 1000000 || job.Dropped < 700_000 || kept.Len() < 200_000 {
		t.Errorf("%+v, %v, %d", job, err, kept.Len())
	}
}
