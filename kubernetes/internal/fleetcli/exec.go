package fleetcli

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"hinit/internal/cmdline"
)

// exec runs a command in the agents' container of a host. in may be nil. exec escapes control
// characters in the output, because an agent may have written it.
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
	out, endOut := cmdline.TerminalWriter(out)
	defer endOut()
	errs, endErrs := cmdline.TerminalWriter(f.Err)
	defer endErrs()
	return remote.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs})
}
