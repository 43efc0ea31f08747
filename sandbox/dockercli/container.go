package dockercli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/samber/lo"

	"hinit/sandbox"
)

// run handles docker run -d and docker create. If the caller's earlier docker ps found no container, another caller may have
// created one since then. In this case run returns that container and makes no second one. A caller that did not call docker
// ps before always gets a new container.
func (p *Emulator) run(ctx context.Context, c *Call, from Caller) int {
	spec, start := c.Spec, c.command.name == "run"
	spec.Env = append(spec.Env, sandbox.Assignments(sandbox.Environment(c.Env, from.Env))...)
	var seen listing
	key := agentLabels(spec.Labels)
	looked := start && key != nil && p.recall(from, "probe", toJSON(key), &seen)
	if start && key != nil && !looked && from.Process != "" {
		spec.Labels = maps.Clone(spec.Labels)
		spec.Labels[sandbox.LabelClient] = from.Process
	}
	if start && key != nil {
		unlock, err := p.Lock(ctx, key)
		if err != nil {
			return from.fail(exitDaemon, err, "")
		}
		defer unlock()
	}
	if looked {
		there, found, err := p.Find(ctx, key, func(there sandbox.Container) bool {
			return slices.Contains(seen.Running, there.ID) || there.State != sandbox.Running && slices.Contains(seen.IDs, there.ID)
		})
		switch {
		case err != nil:
			return p.failRun(c, err, from)
		case found:
			fmt.Fprintln(from.Out, there.ID)
			return 0
		}
	}
	if err := p.fetch(ctx, spec.Image, from); err != nil {
		return p.failRun(c, err, from)
	}
	var id string
	var err error
	if start {
		id, err = p.Make(ctx, spec)
	} else {
		id, err = p.Engine().Create(ctx, spec)
	}
	if err != nil {
		return p.failRun(c, err, from)
	}
	fmt.Fprintln(from.Out, id)
	return 0
}

// agentLabels returns the labels by which the agent finds a container again, or nil if one of them is missing.
func agentLabels(labels map[string]string) map[string]string {
	key := lo.PickByKeys(labels, []string{sandbox.LabelAgent, sandbox.LabelTask, sandbox.LabelProfile})
	if len(key) < 3 {
		return nil
	}
	return key
}

// fetch pulls an image if the engine does not have it.
func (p *Emulator) fetch(ctx context.Context, ref string, from Caller) error {
	_, err := p.Engine().Image(ctx, ref)
	if !errors.Is(err, sandbox.ErrNoImage) {
		return err
	}
	fmt.Fprintf(from.Err, "Unable to find image '%s' locally\n", withTag(ref))
	return p.Engine().Pull(ctx, ref)
}

func (p *Emulator) failRun(c *Call, err error, from Caller) int {
	text := daemonText(err, c.Spec.Image)
	if c.command.name == "create" {
		fmt.Fprintln(from.Err, text)
		return exitFailed
	}
	fmt.Fprintf(from.Err, "docker: %s\n\nRun 'docker run --help' for more information\n", text)
	return exitDaemon
}
