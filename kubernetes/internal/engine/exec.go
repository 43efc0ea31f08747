package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"hinit/internal/guard"
	"hinit/sandbox"
)

// Exec implements [sandbox.Engine] with a WebSocket to the API server.
func (e *Engine) Exec(ctx context.Context, id string, spec sandbox.ExecSpec) (sandbox.Attachment, error) {
	r, err := e.findRecord(ctx, id)
	if err != nil {
		return nil, err
	}
	what := "run a command in the sandbox " + r.name
	if c := r.container(); c.State != sandbox.Running {
		return nil, fmt.Errorf("cannot %s: it is %s: %s", what, c.State, c.Reason)
	}
	if uid, gid, err := parseUser(spec.User); err != nil || spec.User != "" && !sameUser(r.spec.User, uid, gid) {
		return nil, apiError(what, errors.Join(err, unsupported("a cluster runs it as the container's user only, and not as %q", spec.User)))
	}
	asked := &corev1.PodExecOptions{Container: mainContainerName, Command: spec.Argv, Stdin: spec.Stdin, Stdout: true, Stderr: true}
	request := e.core.CoreV1().RESTClient().Get().Resource("pods").Namespace(e.settings.Namespace).Name(r.pod.Name).SubResource("exec").
		VersionedParams(asked, scheme.ParameterCodec)
	dialer, err := remotecommand.NewWebSocketExecutor(e.settings.API, "GET", request.URL().String())
	if err != nil {
		return nil, apiError(what, err)
	}
	stream, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a := &attachment{cancel: cancel}
	a.onTransfer = func() {
		if !a.untracked.Load() {
			e.markUsed(r.id)
		}
	}
	a.out, a.outWriter = io.Pipe()
	options := remotecommand.StreamOptions{Stdout: a.outWriter, Stderr: &a.errorTail}
	if spec.Stdin {
		a.stdin, a.in = io.Pipe()
		options.Stdin = a.stdin
	}
	guard.Go("the connection to a sandbox", func() {
		err := dialer.StreamWithContext(stream, options)
		if err == nil || errors.As(err, new(exec.ExitError)) {
			err = io.EOF
		} else {
			_, _ = a.errorTail.Write([]byte(err.Error())) // ignore the result: [attachment.ErrorText] returns this text
		}
		_ = a.outWriter.CloseWithError(err)
		if a.stdin != nil {
			_ = a.stdin.CloseWithError(io.ErrClosedPipe)
		}
		cancel()
	})
	return a, nil
}

func sameUser(user string, uid, gid int64) bool {
	u, g, err := parseUser(user)
	return err == nil && u == uid && g == gid
}

// markUsed records that a container is in use now. A container in use isn't suspended.
func (e *Engine) markUsed(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastUsed[id] = time.Now()
}

// attachment is the connection to a command that runs in a pod.
type attachment struct {
	cancel     context.CancelFunc
	onTransfer func()      // Callback for transferred bytes.
	untracked  atomic.Bool // Whether transferred bytes do not count as use of the container.
	out        *io.PipeReader
	outWriter  *io.PipeWriter
	stdin      *io.PipeReader // Standard input of the command; nil if it has none.
	in         *io.PipeWriter
	errorTail  excerpt
	outputHead excerpt // Beginning of the output, where a container runtime writes its errors.
}

func (a *attachment) Read(p []byte) (int, error) {
	n, err := a.out.Read(p)
	a.onTransfer()
	if n > 0 {
		a.outputHead.writeHead(p[:n])
	}
	return n, err
}

func (a *attachment) Write(p []byte) (int, error) {
	if a.in == nil {
		return 0, errors.New("cannot write to a command without an input")
	}
	a.onTransfer()
	return a.in.Write(p)
}

// Close implements [io.Closer].
func (a *attachment) Close() error {
	a.cancel()
	_ = a.out.CloseWithError(io.ErrClosedPipe) // ignore the error: closing this pipe does not fail
	if a.in != nil {
		_ = a.in.CloseWithError(io.ErrClosedPipe)
		_ = a.stdin.CloseWithError(io.ErrClosedPipe)
	}
	return nil
}

// ErrorText implements [sandbox.Attachment].
func (a *attachment) ErrorText() string {
	return strings.TrimSpace(a.errorTail.String() + " " + a.outputHead.String())
}

// excerpt keeps a part of a text for an error message: the end if it is filled by Write, the beginning if it is filled by begin.
type excerpt struct {
	mu   sync.Mutex
	text []byte
}

const maxTail = 2 << 10

// Write keeps the last 2 KiB of the text. It never fails.
func (t *excerpt) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(p), nil
}

// writeHead keeps the first 300 bytes of the text.
func (t *excerpt) writeHead(p []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[:min(len(p), max(0, 300-len(t.text)))]...)
}

func (t *excerpt) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// CopyIn implements [sandbox.Engine]. It always returns an error, because only the helper can copy files.
func (e *Engine) CopyIn(_ context.Context, id, _ string, _ io.Reader) error {
	return apiError("copy into the sandbox "+shortID(id), unsupported("a cluster copies nothing; use: hinit sandbox cp"))
}

// CopyOut implements [sandbox.FullEngine]. It always returns an error, as CopyIn does.
func (e *Engine) CopyOut(_ context.Context, id, _ string) (io.ReadCloser, error) {
	return nil, apiError("copy from the sandbox "+shortID(id), unsupported("a cluster copies nothing; use: hinit sandbox cp"))
}

// Logs implements [sandbox.Engine]. It writes everything to stdout, because a cluster merges the two streams.
func (e *Engine) Logs(ctx context.Context, id string, follow bool, stdout, _ io.Writer) error {
	r, err := e.findRecord(ctx, id)
	if err != nil {
		return err
	}
	what := "read the log of the sandbox " + r.name
	if r.pod == nil {
		return apiError(what, unsupported("it has no pod"))
	}
	stream, err := e.core.CoreV1().Pods(e.settings.Namespace).GetLogs(r.pod.Name, &corev1.PodLogOptions{Container: mainContainerName, Follow: follow}).Stream(ctx)
	if err != nil {
		return apiError(what, err)
	}
	defer stream.Close()
	_, err = io.Copy(stdout, stream)
	return apiError(what, err)
}
