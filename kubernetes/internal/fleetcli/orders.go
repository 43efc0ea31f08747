package fleetcli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/internal/cmdline"
	"hinit/kubernetes/api/v1alpha1"
)

// awaitCondition calls poll every half second until poll returns done, for at most limit. It prints
// the word that poll returns whenever the word changes. After limit, it returns an error that names
// what, the condition.
func (f *fleet) awaitCondition(ctx context.Context, limit time.Duration, what string, poll func() (done bool, word string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	said := ""
	for {
		done, word, err := poll()
		if err != nil {
			return err
		}
		if word != said && word != "" {
			fmt.Fprintln(f.Out, word)
			said = word
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot wait until %s: %s is over; the operation continues", what, limit)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func runMove(ctx context.Context, c *call) error {
	limit := c.Flags.Duration("timeout", 10*time.Minute, "how long to wait, as `D`; 0 does not wait")
	f, words, err := c.connect(1, 2)
	if err != nil {
		return err
	}
	p, err := f.profile(ctx, words[0])
	if err != nil {
		return err
	}
	to := ""
	if len(words) == 2 {
		to = words[1]
	}
	if err := f.pin(ctx, p, to); err != nil {
		return err
	}
	if to == "" {
		fmt.Fprintf(c.Out, "%s is pinned to no host\n", p.Name)
		return nil
	}
	if *limit == 0 {
		fmt.Fprintf(c.Out, "%s is pinned to %s\n", p.Name, to)
		return nil
	}
	return f.awaitCondition(ctx, *limit, p.Name+" is on "+to, func() (bool, string, error) {
		now, err := f.profile(ctx, p.Name)
		if err != nil {
			return false, "", err
		}
		s := now.Status
		if s.Host == to && s.Installed == s.Assignment && (s.Ready || !now.WantsGateway()) {
			return true, fmt.Sprintf("%s is %s on %s, and pinned there; hinit-fleet move %s ends that", now.Name, s.Phase, to, now.Name), nil
		}
		return false, s.Message, nil
	})
}

// pin pins a profile to the host to, or removes the pin if to is "". It also removes the record of failed moves, so that the
// profile moves at once.
func (f *fleet) pin(ctx context.Context, p *v1alpha1.AgentProfile, to string) error {
	old := p.DeepCopy()
	p.Spec.Pin = to
	err := f.api.Patch(ctx, p, client.MergeFrom(old))
	if err == nil && p.Status.MoveFailure != nil {
		old = p.DeepCopy()
		p.Status.MoveFailure = nil
		err = f.api.Status().Patch(ctx, p, client.MergeFrom(old))
	}
	if err != nil {
		return fmt.Errorf("cannot move profile %q: %w", p.Name, err)
	}
	return nil
}

// poolOf returns the pool of a host. It returns an error for the pod of a single profile.
func (f *fleet) poolOf(ctx context.Context, host string) (*v1alpha1.AgentPool, error) {
	pod := &corev1.Pod{}
	err := f.api.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: host}, pod)
	if err == nil && pod.Labels[v1alpha1.PoolLabel] == "" || apierrors.IsNotFound(err) {
		return nil, codeError{cmdline.ExitUnknown, fmt.Errorf("cannot find host %q: there is no such pod of a pool in namespace %s; hinit-fleet top lists them", host, f.namespace)}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find host %q: %w", host, err)
	}
	if profile := pod.Labels[v1alpha1.ProfileLabel]; profile != "" {
		return nil, fmt.Errorf("cannot drain host %q: it is the pod of profile %q alone; spec.placement: packed moves the profile to a host", host, profile)
	}
	return f.pool(ctx, pod.Labels[v1alpha1.PoolLabel])
}

func runDrain(ctx context.Context, c *call) error {
	limit := c.Flags.Duration("timeout", 30*time.Minute, "how long to wait, as `D`; 0 does not wait")
	undo := c.Flags.Bool("undo", false, "let the host take profiles again")
	f, words, err := c.connect(1, 1)
	if err != nil {
		return err
	}
	host := words[0]
	var p *v1alpha1.AgentPool
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // The patch replaces the whole list, so it must fail if the list has changed.
		if p, err = f.poolOf(ctx, host); err != nil {
			return err
		}
		old := p.DeepCopy()
		p.Spec.Drain = slices.DeleteFunc(p.Spec.Drain, func(one string) bool { return one == host })
		if !*undo {
			p.Spec.Drain = append(p.Spec.Drain, host)
		}
		if err := f.api.Patch(ctx, p, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("cannot drain host %q: %w", host, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if *undo || *limit == 0 {
		fmt.Fprintf(c.Out, "hosts that the pool %s drains: %s\n", p.Name, cmp.Or(strings.Join(p.Spec.Drain, ", "), "none"))
		return nil
	}
	return f.awaitCondition(ctx, *limit, "host "+host+" is empty", func() (bool, string, error) {
		list, err := f.profiles(ctx)
		left, pinned := 0, 0
		for _, one := range list {
			if one.Status.Host != host {
				continue
			}
			left++
			if one.Spec.Pin == host {
				pinned++
			}
		}
		switch {
		case err != nil:
			return false, "", err
		case left == 0:
			return true, fmt.Sprintf("host %s is empty; hinit-fleet drain --undo %s lets it take profiles again", host, host), nil
		case left == pinned:
			return true, fmt.Sprintf("host %s has %d profiles that are pinned to it", host, left), nil
		}
		return false, fmt.Sprintf("host %s has %d profiles", host, left), nil
	})
}

func runRollout(ctx context.Context, c *call) error {
	limit := c.Flags.Duration("timeout", time.Hour, "how long to wait, as `D`; 0 does not wait")
	f, words, err := c.connect(1, 2)
	if err != nil {
		return err
	}
	p, err := f.pool(ctx, words[0])
	if err != nil {
		return err
	}
	if len(words) == 2 {
		old := p.DeepCopy()
		p.Spec.Image = words[1]
		if err := f.api.Patch(ctx, p, client.MergeFrom(old)); err != nil {
			return fmt.Errorf("cannot roll out pool %q: %w", p.Name, err)
		}
	}
	if *limit == 0 {
		return nil
	}
	return f.awaitCondition(ctx, *limit, "pool "+p.Name+" has its image", func() (bool, string, error) {
		now, err := f.pool(ctx, p.Name)
		if err != nil {
			return false, "", err
		}
		s := now.Status
		word := fmt.Sprintf("%d of %d hosts have %s", s.Updated, s.Wanted, now.Spec.Image)
		done := s.ObservedGeneration == now.Generation && s.Updated == s.Wanted && s.Reachable == s.Wanted
		return done, word, nil
	})
}

func runLogs(ctx context.Context, c *call) error {
	follow := c.Flags.Bool("f", false, "follow: keep printing new lines")
	lines := c.Flags.Int("lines", 20, "how many `LINES` of the past")
	f, words, err := c.connect(1, 1)
	if err != nil {
		return err
	}
	p, err := f.profile(ctx, words[0])
	if err != nil {
		return err
	}
	if p.Status.Host == "" {
		return fmt.Errorf("cannot read the log of profile %q: no host has it; hinit-fleet explain %s tells why", p.Name, p.Name)
	}
	command := []string{"hinit", "logs", "-n", strconv.Itoa(*lines), p.Name}
	if *follow {
		command = append(command, "-f")
	}
	err = f.exec(ctx, p.Status.Host, nil, c.Out, command...)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("cannot read the log of profile %q on host %s: %w", p.Name, p.Status.Host, err)
	}
	return nil
}
