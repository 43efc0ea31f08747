package fleetcli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/internal/cmdline"
	"hinit/internal/proc"
	"hinit/kubernetes/api/v1alpha1"
)

// outsideHinit is the command that reaches a hinit outside of the fleet: the words before "hinit", such as docker exec -i agents.
type outsideHinit []string

// run runs a hinit command outside of the fleet. in and out may be nil.
func (o outsideHinit) run(ctx context.Context, in, out *os.File, words ...string) error {
	argv := slices.Concat(o, []string{"hinit"}, words)
	x, err := proc.Run(ctx, proc.Spec{ID: 1, Argv: argv, Env: os.Environ(), Files: []*os.File{in, out, os.Stderr}, Attached: true})
	if err == nil && (x.Code != 0 || x.Signal != 0) {
		err = fmt.Errorf("it ends with code %d", x.Code)
	}
	if err != nil {
		return fmt.Errorf("cannot run %q: %w", strings.Join(argv, " "), err)
	}
	return nil
}

// piped runs a hinit command outside of the fleet, and calls fn while the command runs. The file passed to fn is a pipe: the
// command's standard output if output is true, otherwise its standard input.
func (o outsideHinit) piped(ctx context.Context, output bool, fn func(*os.File) error, words ...string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	mine, in, out := w, r, (*os.File)(nil)
	if output {
		mine, in, out = r, nil, w
	}
	ended := make(chan error, 1)
	go func() {
		err := o.run(ctx, in, out, words...)
		_ = cmp.Or(in, out).Close()
		ended <- err
	}()
	err = fn(mine)
	return errors.Join(err, mine.Close(), <-ended)
}

// outsideProfile is a profile outside of the fleet, as hinit profile list prints it.
type outsideProfile struct{ Name, Want string }

func (o outsideHinit) profiles(ctx context.Context) (all []outsideProfile, err error) {
	err = o.piped(ctx, true, func(out *os.File) error { return json.NewDecoder(out).Decode(&all) }, "profile", "list", "--json")
	return all, err
}

// exec runs a command in the agents' container of a host. in may be nil.
func (f *fleet) exec(ctx context.Context, host string, in io.Reader, out io.Writer, words ...string) error {
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
	return remote.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: f.Err})
}

// change modifies the spec of the profile called name with a function, and writes the result.
func (f *fleet) change(ctx context.Context, name string, change func(*v1alpha1.AgentProfileSpec)) error {
	p, err := f.profile(ctx, name)
	if err != nil {
		return err
	}
	old := p.DeepCopy()
	change(&p.Spec)
	if err := f.api.Patch(ctx, p, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("cannot change profile %q: %w", name, err)
	}
	return nil
}

// stopped waits, for at most limit, until a profile has data on a host and its gateway has stopped. It returns the host's name.
func (f *fleet) stopped(ctx context.Context, limit time.Duration, name string) (host string, err error) {
	err = f.wait(ctx, limit, name+" is stopped", func() (bool, string, error) {
		p, err := f.profile(ctx, name)
		if err != nil {
			return false, "", err
		}
		s := p.Status
		host = s.Host
		done := s.Phase == v1alpha1.PhaseStopped && s.ObservedGeneration == p.Generation && s.Installed == s.Assignment && s.Move == nil
		return done, s.Message, nil
	})
	return host, err
}

func runImport(ctx context.Context, c *call) error {
	from := c.Flags.String("from", "", "the words before hinit that reach the other one: `COMMAND`, such as \"docker exec -i agents\"; none is this machine")
	limit := c.Flags.Duration("timeout", 10*time.Minute, "how long to wait for one step, as `D`")
	f, words, err := c.begin(1, -1)
	if err != nil {
		return err
	}
	if _, err := f.pool(ctx, words[0]); err != nil {
		return err
	}
	o := outsideHinit(strings.Fields(*from))
	all, err := o.profiles(ctx)
	if err != nil {
		return err
	}
	names := words[1:]
	for _, p := range all {
		switch {
		case len(words) > 1:
		case p.Name == "default":
			fmt.Fprintf(c.Err, "default stays: a fleet has no profile of that name; hinit-fleet import %s default=NAME takes it\n", words[0])
		default:
			names = append(names, p.Name)
		}
	}
	for _, word := range names {
		name, to, _ := strings.Cut(word, "=")
		known := false
		for _, p := range all {
			if known = p.Name == name; known {
				err = f.importProfile(ctx, o, words[0], p, cmp.Or(to, name), *limit)
				break
			}
		}
		if !known {
			err = codeError{cmdline.Unknown, fmt.Errorf("cannot import profile %q: there is no such profile", name)}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// importProfile copies an outside profile into a pool. It stops the outside profile first, and leaves its files in place. After
// an error, the outside profile is started again if it ran before.
func (f *fleet) importProfile(ctx context.Context, o outsideHinit, pool string, from outsideProfile, name string, limit time.Duration) (err error) {
	no, up := false, from.Want == "up"
	p := &v1alpha1.AgentProfile{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.namespace}, Spec: v1alpha1.AgentProfileSpec{Pool: pool, Running: &no, OnDelete: "Delete"},
	}
	if err := f.api.Create(ctx, p); err != nil {
		return fmt.Errorf("cannot import profile %q: %w", from.Name, err)
	}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
			defer cancel()
			err = errors.Join(fmt.Errorf("cannot import profile %q: %w", from.Name, err), f.api.Delete(ctx, p))
			if up {
				err = errors.Join(err, o.run(ctx, nil, nil, "start", from.Name))
			}
		}
	}()
	host, err := f.stopped(ctx, limit, name)
	if err == nil && up {
		err = o.run(ctx, nil, nil, "stop", from.Name)
	}
	if err == nil {
		err = o.piped(ctx, true, func(archive *os.File) error {
			return f.exec(ctx, host, archive, io.Discard, "hinit", "profile", "import", "--replace", name)
		}, "profile", "export", "--secrets", from.Name)
	}
	if err != nil {
		return err
	}
	if err := f.change(ctx, name, func(s *v1alpha1.AgentProfileSpec) { s.Running, s.OnDelete = &up, "" }); err != nil {
		return err
	}
	fmt.Fprintf(f.Out, "%s is on %s; outside of the fleet it is stopped, and keeps its files\n", name, host)
	return nil
}

func runExport(ctx context.Context, c *call) error {
	to := c.Flags.String("to", "", "the words before hinit that reach the other one: `COMMAND`, such as \"docker exec -i agents\"; none is this machine")
	limit := c.Flags.Duration("timeout", 10*time.Minute, "how long to wait for one step, as `D`")
	f, names, err := c.begin(1, -1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := f.exportProfile(ctx, outsideHinit(strings.Fields(*to)), name, *limit); err != nil {
			return err
		}
	}
	return nil
}

// exportProfile stops a profile of the fleet, copies it to the outside hinit, and deletes its object in the cluster. If the copy
// fails, the profile runs in the fleet again as before.
func (f *fleet) exportProfile(ctx context.Context, o outsideHinit, name string, limit time.Duration) (err error) {
	p, err := f.profile(ctx, name)
	if err != nil {
		return err
	}
	up, no := p.Wanted(), false
	if err := f.change(ctx, name, func(s *v1alpha1.AgentProfileSpec) { s.Running = &no }); err != nil {
		return err
	}
	host, err := f.stopped(ctx, limit, name)
	if err == nil {
		err = o.piped(ctx, false, func(archive *os.File) error {
			return f.exec(ctx, host, nil, archive, "hinit", "profile", "export", "--secrets", name)
		}, "profile", "import", "--replace", name)
	}
	if err != nil {
		back := f.change(context.WithoutCancel(ctx), name, func(s *v1alpha1.AgentProfileSpec) { s.Running = &up })
		return errors.Join(fmt.Errorf("cannot export profile %q: %w", name, err), back)
	}
	if err := f.api.Delete(ctx, p); err != nil {
		return fmt.Errorf("cannot delete profile %q, which was exported: %w", name, err)
	}
	if up {
		err = o.run(ctx, nil, nil, "start", name)
	}
	fmt.Fprintf(f.Out, "%s has left the fleet; host %s retains its files\n", name, host)
	return err
}
