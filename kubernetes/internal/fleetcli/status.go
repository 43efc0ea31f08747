package fleetcli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// fleet is a connection to the API server for the fleet in one namespace.
type fleet struct {
	*call
	api    client.Client
	config *rest.Config

	// Tests replace [fleet.exec] by this function.
	execute func(ctx context.Context, host string, in io.Reader, out io.Writer, words ...string) error
}

func (c *call) fleet() (*fleet, error) {
	config, namespace, err := c.api()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 50, 100
	api, err := client.New(config, client.Options{Scheme: v1alpha1.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of the API server: %w", err)
	}
	c.namespace = namespace
	return &fleet{call: c, api: api, config: config}, nil
}

// profiles returns the named profiles, or all if there are no names, sorted by name.
func (f *fleet) profiles(ctx context.Context, names ...string) ([]v1alpha1.AgentProfile, error) {
	list := &v1alpha1.AgentProfileList{}
	if len(names) == 0 {
		if err := f.api.List(ctx, list, client.InNamespace(f.namespace)); err != nil {
			return nil, fmt.Errorf("cannot list profiles: %w", err)
		}
		for i := range list.Items {
			escapeTexts(&list.Items[i].Status)
		}
	}
	for _, name := range names {
		p, err := f.profile(ctx, name)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, *p)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.AgentProfile) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

func (f *fleet) profile(ctx context.Context, name string) (*v1alpha1.AgentProfile, error) {
	p := &v1alpha1.AgentProfile{}
	if err := f.read(ctx, p, name, "profile", "AgentProfile", "status"); err != nil {
		return nil, err
	}
	escapeTexts(&p.Status)
	return p, nil
}

func (f *fleet) pool(ctx context.Context, name string) (*v1alpha1.AgentPool, error) {
	p := &v1alpha1.AgentPool{}
	return p, f.read(ctx, p, name, "pool", "AgentPool", "top")
}

// read reads an object. word is the name of its kind in messages, and command is a command that lists all objects of this
// kind.
func (f *fleet) read(ctx context.Context, o client.Object, name, word, kind, command string) error {
	err := f.api.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: name}, o)
	if apierrors.IsNotFound(err) {
		return codeError{cmdline.ExitUnknown, fmt.Errorf("cannot find %s %q: there is no such %s in namespace %s; hinit-fleet %s lists them", word, name, kind, f.namespace, command)}
	}
	if err != nil {
		return fmt.Errorf("cannot read %s %q: %w", word, name, err)
	}
	return nil
}

// escapeTexts makes the escape sequences in the texts of a status visible. Agents can influence these texts, and must not
// control the user's terminal.
func escapeTexts(s *v1alpha1.AgentProfileStatus) {
	texts := []*string{&s.Message, &s.Cause, &s.Host}
	if s.LastExit != nil {
		texts = append(texts, &s.LastExit.Cause)
	}
	if s.Move != nil {
		texts = append(texts, &s.Move.Reason, &s.Move.To)
	}
	if s.MoveFailure != nil {
		texts = append(texts, &s.MoveFailure.Message, &s.MoveFailure.To)
	}
	for i := range s.Conditions {
		texts = append(texts, &s.Conditions[i].Message)
	}
	for _, text := range texts {
		*text = show.EscapeLine(*text)
	}
}

func formatSince(t *metav1.Time) string {
	if t == nil {
		return "-"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func formatSize(q *resource.Quantity) string {
	if q == nil {
		return "-"
	}
	return fmt.Sprintf("%d MB", q.Value()>>20)
}

// printTable prints rows in aligned columns. A row is a text with tabs between its cells.
func printTable(w io.Writer, head string, rows []string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head)
	for _, r := range rows {
		fmt.Fprintln(t, r)
	}
	_ = t.Flush() // Ignore the error: Flush fails only if the reader of the output is gone.
}

func runStatus(ctx context.Context, c *call) error {
	f, names, err := c.connect(0, -1)
	if err != nil {
		return err
	}
	list, err := f.profiles(ctx, names...)
	if err != nil {
		return err
	}
	var rows, down []string
	for _, p := range list {
		s := p.Status
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%v\t%s\t%d\t%s\t%s\t%s", p.Name, cmp.Or(s.Host, "-"), cmp.Or(s.Phase, v1alpha1.PhasePending), s.Ready, formatSince(s.Since), s.Restarts, formatSize(s.Memory), cmp.Or(s.Cause, "-"), cmp.Or(s.Message, "-")))
		if p.WantsGateway() && !s.Ready {
			down = append(down, p.Name)
		}
	}
	printTable(c.Out, "NAME\tHOST\tPHASE\tREADY\tSINCE\tRESTARTS\tMEMORY\tLAST EXIT\tNOTE", rows)
	if len(names) > 0 && len(down) > 0 {
		return codeError{cmdline.ExitNotUp, fmt.Errorf("not ready: %s; hinit-fleet explain tells why", strings.Join(down, ", "))}
	}
	return nil
}

func runTop(ctx context.Context, c *call) error {
	var once bool
	c.Flags.BoolVar(&once, "once", false, "print it once")
	f, _, err := c.connect(0, 0)
	if err != nil {
		return err
	}
	for {
		var page strings.Builder
		if err := f.printTop(ctx, &page); err != nil {
			return err
		}
		if once {
			fmt.Fprint(c.Out, page.String())
			return nil
		}
		fmt.Fprint(c.Out, "\033[H\033[2J"+page.String())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}

func (f *fleet) printTop(ctx context.Context, w io.Writer) error {
	pools, pods := &v1alpha1.AgentPoolList{}, &corev1.PodList{}
	if err := f.api.List(ctx, pools, client.InNamespace(f.namespace)); err != nil {
		return fmt.Errorf("cannot list pools: %w", err)
	}
	if err := f.api.List(ctx, pods, client.InNamespace(f.namespace), client.HasLabels{v1alpha1.PoolLabel}); err != nil {
		return fmt.Errorf("cannot list hosts: %w", err)
	}
	profiles, err := f.profiles(ctx)
	if err != nil {
		return err
	}
	for i := range pools.Items {
		p := &pools.Items[i]
		s := p.Status
		fmt.Fprintf(w, "pool %s: %d hosts, %d reachable, %d updated; %d profiles, %d ready, %d pending, %d lost; %s\n", p.Name, s.Hosts, s.Reachable, s.Updated, s.Profiles, s.Ready, s.Pending, s.Lost, cmp.Or(s.Doing, "nothing to do"))
		var rows []string
		for _, pod := range pods.Items {
			if pod.Labels[v1alpha1.PoolLabel] == p.Name {
				rows = append(rows, hostRow(p, &pod, profiles))
			}
		}
		printTable(w, "HOST\tNODE\tPROFILES\tREADY\tMEMORY\tROOM\tIMAGE\tNOTE", rows)
	}
	return nil
}

func hostRow(p *v1alpha1.AgentPool, pod *corev1.Pod, profiles []v1alpha1.AgentProfile) string {
	n, ready, memory := 0, 0, int64(0)
	for i := range profiles {
		one := &profiles[i]
		if one.Status.Host != pod.Name {
			continue
		}
		n, memory = n+1, memory+pool.ReservedMemory(p, one)
		if one.Status.Ready {
			ready++
		}
	}
	note := "-"
	switch {
	case slices.Contains(p.Spec.Drain, pod.Name):
		note = "drained"
	case p.Status.Leaving == pod.Name:
		note = "is to go"
	case pod.DeletionTimestamp != nil:
		note = "ends"
	case pod.Labels[v1alpha1.ProfileLabel] != "":
		note = "of " + pod.Labels[v1alpha1.ProfileLabel] + " alone"
	}
	return fmt.Sprintf("%s\t%s\t%d\t%d\t%d MB\t%d MB\t%s\t%s", pod.Name, cmp.Or(pod.Spec.NodeName, "-"), n, ready, memory>>20, pool.HostMemory(p)>>20, pod.Spec.Containers[0].Image, note)
}

func runExplain(ctx context.Context, c *call) error {
	f, names, err := c.connect(1, 1)
	if err != nil {
		return err
	}
	p, err := f.profile(ctx, names[0])
	if err != nil {
		return err
	}
	s := p.Status
	fmt.Fprintf(c.Out, "%s is %s, ready: %v", p.Name, cmp.Or(s.Phase, v1alpha1.PhasePending), s.Ready)
	if s.Since != nil {
		fmt.Fprintf(c.Out, ", for %s", formatSince(s.Since))
	}
	fmt.Fprintln(c.Out)
	if s.Message != "" {
		fmt.Fprintln(c.Out, "  because:", s.Message)
	}
	if s.Host == "" {
		fmt.Fprintln(c.Out, "  no host has its data yet")
	} else {
		fmt.Fprintf(c.Out, "  its data is on the volume of host %s (assignment %d, installed %d)\n", s.Host, s.Assignment, p.InstalledAssignment())
	}
	if pod := pool.SinglePodName(p.Spec.Pool, p.Name); p.WantsOwnPod() {
		fmt.Fprintf(c.Out, "  it shall have a pod of its own, %s\n", pod)
	}
	if m := s.Move; m != nil {
		state := "the gateway is being stopped"
		if m.Received != nil {
			state = "the data has arrived"
		} else if m.Offer != nil {
			state = "the gateway is stopped, and the data is being sent"
		}
		fmt.Fprintf(c.Out, "  moves to host %s for %s: %s; %s\n", m.To, formatSince(&m.Since), m.Reason, state)
	}
	if x := s.MoveFailure; x != nil {
		fmt.Fprintf(c.Out, "  %d moves have failed, the last %s ago: %s\n", x.Attempts, formatSince(&x.At), x.Message)
	}
	if x := s.LastExit; x != nil {
		fmt.Fprintf(c.Out, "  last exit: %s, %s ago\n", x.Cause, formatSince(&x.At))
	}
	for _, one := range s.Conditions {
		fmt.Fprintf(c.Out, "  %s: %s (%s) %s\n", one.Type, one.Status, one.Reason, one.Message)
	}
	if s.ObservedGeneration != p.Generation {
		fmt.Fprintln(c.Out, "  the host has not applied the last change yet")
	}
	return nil
}
