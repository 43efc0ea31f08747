package fleetcli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"hinit/internal/cmdline"
	"hinit/internal/proc"
)

// exec runs a command in the agents' container of a host. The parameter in may be nil. The command sees no terminal, so exec escapes
// for a terminal what the command writes there.
func (f *fleet) exec(ctx context.Context, host string, in io.Reader, out io.Writer, words ...string) error {
	if f.execute != nil {
		return f.execute(ctx, host, in, out, words...)
	}
	kube, err := kubernetes.NewForConfig(f.config)
	if err != nil {
		return fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	request := kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(f.namespace).Name(host).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "agents", Command: words, Stdin: in != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	remote, err := remotecommand.NewWebSocketExecutor(f.config, "GET", request.URL().String())
	if err != nil {
		return err
	}
	out, endOut := forTerminal(out)
	defer endOut()
	errs, endErrs := forTerminal(f.Err)
	defer endErrs()
	return remote.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs})
}

// forTerminal returns w, or escaped lines if w is a terminal. Call end after the last write.
func forTerminal(w io.Writer) (out io.Writer, end func()) {
	if file, is := w.(*os.File); !is || !proc.IsTerminal(file) {
		return w, func() {}
	}
	lines := &escapedLines{to: w}
	return lines, lines.end
}

// escapedLines writes lines of a program to a terminal. It escapes what would control the terminal, except for tabs and colours.
type escapedLines struct {
	to   io.Writer
	rest []byte // the beginning of a line
}

// longestLine is the number of bytes after which a line counts as ended.
const longestLine = 64 << 10

func (l *escapedLines) Write(data []byte) (int, error) {
	l.rest = append(l.rest, data...)
	for {
		line, rest, ended := bytes.Cut(l.rest, []byte("\n"))
		if !ended && len(line) < longestLine {
			return len(data), nil
		}
		l.rest = rest
		if _, err := fmt.Fprintln(l.to, cmdline.Output(string(line))); err != nil {
			return 0, err
		}
	}
}

// end writes the last line if it has no line break.
func (l *escapedLines) end() {
	if len(l.rest) > 0 {
		_, _ = l.Write([]byte("\n")) // the terminal may be gone
	}
}
