package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"hinit/internal/fsutil"
	"hinit/sandbox"
)

// Owner is whom a guard is for.
type Owner struct {
	UID     uint32
	Profile string // the value of the profile's label
	// All is an operator: every container with the agent's label is its own.
	All bool
	// State is where the service keeps what it knows of the owner, and Dir what the owner has for the directories of its sandboxes: a mount
	// of something below the first is one of the same name below the second.
	State, Dir string
	// Actor does on the file system what is done for the owner, such as making a directory to mount.
	Actor *fsutil.Actor
}

// Guarded is an engine for one owner. See [Guard].
type Guarded struct {
	sandbox.Engine
	policy Policy
	owner  Owner
	places Places
	gate   *Gate

	mu    sync.Mutex
	known map[string]bool // ids of containers that are the owner's: labels never change
}

// Guard returns an engine that does for the owner what the policy allows, and nothing to a container that isn't the owner's: for those it
// says what it says for one that does not exist. Closing it does not close the engine.
func Guard(engine sandbox.Engine, policy Policy, owner Owner, places Places, gate *Gate) *Guarded {
	return &Guarded{Engine: engine, policy: policy, owner: owner, places: places, gate: gate, known: map[string]bool{}}
}

// Close implements sandbox.Engine.
func (g *Guarded) Close() error { return nil }

// Image implements sandbox.Engine.
func (g *Guarded) Image(ctx context.Context, ref string) (sandbox.Image, error) {
	if !g.policy.AllowsImage(ref) {
		return sandbox.Image{}, &RefusedError{"the image " + strconv.Quote(ref), "HINIT_SANDBOX_IMAGES lists those that are"}
	}
	return g.Engine.Image(ctx, ref)
}

// Pull implements sandbox.Engine.
func (g *Guarded) Pull(ctx context.Context, ref string) error {
	if !g.policy.AllowsImage(ref) {
		return &RefusedError{"the image " + strconv.Quote(ref), "HINIT_SANDBOX_IMAGES lists those that are"}
	}
	return g.Engine.Pull(ctx, ref)
}

// labels are those that the owner's containers have.
func (g *Guarded) labels() map[string]string {
	if g.owner.All {
		return map[string]string{sandbox.LabelAgent: "1"}
	}
	return map[string]string{LabelOwner: strconv.FormatUint(uint64(g.owner.UID), 10)}
}

// owns says whether a container is the owner's.
func (g *Guarded) owns(c sandbox.Container) bool {
	for name, value := range g.labels() {
		if c.Labels[name] != value {
			return false
		}
	}
	return c.ID != g.places.self && (g.owner.All || g.owner.has(c.Labels[sandbox.LabelProfile]))
}

// has says whether a profile is the owner's. The agent calls that of the volume itself by either of two names, depending on its version.
func (o Owner) has(profile string) bool {
	return profile == o.Profile || o.Profile == "default" && profile == "custom"
}

// List implements sandbox.Engine.
func (g *Guarded) List(ctx context.Context, labels map[string]string) ([]sandbox.Container, error) {
	want := g.labels()
	for name, value := range labels {
		if own, has := want[name]; has && value != "" && value != own {
			return nil, nil // somebody else's
		} else if !has {
			want[name] = value
		}
	}
	found, err := g.Engine.List(ctx, want)
	return slices.DeleteFunc(found, func(c sandbox.Container) bool { return !g.owns(c) }), err
}

// Inspect implements sandbox.Engine.
func (g *Guarded) Inspect(ctx context.Context, id string) (sandbox.Container, error) {
	c, err := g.Engine.Inspect(ctx, id)
	if err != nil {
		return c, err
	}
	if !g.owns(c) {
		return sandbox.Container{}, fmt.Errorf("cannot look at container %s: %w", id, sandbox.ErrGone)
	}
	return c, nil
}

// own returns the full id of a container of the owner's.
func (g *Guarded) own(ctx context.Context, id string) (string, error) {
	g.mu.Lock()
	known := g.known[id]
	g.mu.Unlock()
	if known {
		return id, nil
	}
	c, err := g.Inspect(ctx, id)
	if err != nil {
		return "", err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) > 4096 { // of many lives
		clear(g.known)
	}
	g.known[c.ID] = true
	return c.ID, nil
}

// Create implements sandbox.Engine.
func (g *Guarded) Create(ctx context.Context, spec sandbox.Spec) (string, error) {
	spec.Labels = maps.Clone(spec.Labels)
	if err := g.policy.Check(&spec); err != nil {
		return "", err
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{}
	}
	if profile, has := spec.Labels[sandbox.LabelProfile]; has && !g.owner.All && !g.owner.has(profile) {
		return "", &RefusedError{"a container of the profile " + strconv.Quote(profile), "this is " + strconv.Quote(g.owner.Profile)}
	}
	spec.Labels[LabelOwner] = strconv.FormatUint(uint64(g.owner.UID), 10)
	spec.Labels[sandbox.LabelAgent] = "1"
	if spec.Labels[sandbox.LabelProfile] == "" {
		spec.Labels[sandbox.LabelProfile] = g.owner.Profile
	}
	if err := g.room(ctx); err != nil {
		return "", err
	}
	bound, err := g.resolve(&spec)
	if err != nil {
		return "", err
	}
	if bound {
		if err := g.gate.install(ctx, g.Engine, &spec); err != nil {
			return "", err
		}
	}
	return g.Engine.Create(ctx, spec)
}

// room refuses a container too many.
func (g *Guarded) room(ctx context.Context) error {
	if g.policy.Most == 0 || g.owner.All {
		return nil
	}
	there, err := g.Engine.List(ctx, map[string]string{LabelOwner: strconv.FormatUint(uint64(g.owner.UID), 10)})
	if err == nil && len(there) >= g.policy.Most {
		err = &RefusedError{fmt.Sprintf("a container besides the %d that there are", len(there)), "remove one with: hinit sandbox rm"}
	}
	return err
}

// Start implements sandbox.Engine. A container with mounts of the owner's directories is not let through its gate, and is killed, when
// what is mounted is not what the guard finds at the same path without following a link.
func (g *Guarded) Start(ctx context.Context, id string) error {
	c, err := g.Inspect(ctx, id)
	if err != nil {
		return err
	}
	id = c.ID
	if err := again(c); err != nil {
		return err
	}
	if err := g.Engine.Start(ctx, id); err != nil {
		g.gate.forget()
		return err
	}
	if c, err = g.Engine.Inspect(ctx, id); err == nil {
		err = g.verify(ctx, c)
	}
	if err != nil {
		return errors.Join(err, g.Engine.Stop(context.WithoutCancel(ctx), id, 0))
	}
	return nil
}

// Unpause implements sandbox.Engine.
func (g *Guarded) Unpause(ctx context.Context, id string) error {
	id, err := g.own(ctx, id)
	if err != nil {
		return err
	}
	return g.Engine.Unpause(ctx, id)
}

// Stop implements sandbox.Engine.
func (g *Guarded) Stop(ctx context.Context, id string, grace time.Duration) error {
	id, err := g.own(ctx, id)
	if err != nil {
		return err
	}
	return g.Engine.Stop(ctx, id, grace)
}

// Remove implements sandbox.Engine.
func (g *Guarded) Remove(ctx context.Context, id string) error {
	id, err := g.own(ctx, id)
	if errors.Is(err, sandbox.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return g.Engine.Remove(ctx, id)
}

// Exec implements sandbox.Engine.
func (g *Guarded) Exec(ctx context.Context, id string, spec sandbox.ExecSpec) (sandbox.Attachment, error) {
	id, err := g.own(ctx, id)
	if err != nil {
		return nil, err
	}
	return g.Engine.Exec(ctx, id, spec)
}

// CopyIn implements sandbox.Engine.
func (g *Guarded) CopyIn(ctx context.Context, id, dir string, tar io.Reader) error {
	id, err := g.own(ctx, id)
	if err != nil {
		return err
	}
	return g.Engine.CopyIn(ctx, id, dir, tar)
}

// CopyOut implements sandbox.Engine.
func (g *Guarded) CopyOut(ctx context.Context, id, path string) (io.ReadCloser, error) {
	id, err := g.own(ctx, id)
	if err != nil {
		return nil, err
	}
	return g.Engine.CopyOut(ctx, id, path)
}

// Logs implements sandbox.Engine.
func (g *Guarded) Logs(ctx context.Context, id string, follow bool, stdout, stderr io.Writer) error {
	id, err := g.own(ctx, id)
	if err != nil {
		return err
	}
	return g.Engine.Logs(ctx, id, follow, stdout, stderr)
}
