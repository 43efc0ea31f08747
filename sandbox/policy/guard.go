package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
	"hinit/sandbox"
)

// Owner is the user and profile for which a guard acts. The guard shows only the containers of this owner.
type Owner struct {
	UID     uint32 // user id of the owner; for an operator, the agent's user id
	Profile string // value of the label sandbox.LabelProfile on the owner's containers
	Volume  string // Value of the label sandbox.LabelVolume. It differs between installations with the same users and profiles.
	// Operator is true if this owner is root. All containers on Volume then count as the owner's, of every user and profile.
	Operator bool
	// Actor changes files with the owner's rights, for instance to make a directory that is mounted. Where containers can't
	// have root inside, their commands run as the Actor's user. Actor may be nil.
	Actor *fsutil.Actor
}

// Guarded is an engine that does only what the policy permits to one owner. [Guard] makes it.
type Guarded struct {
	Engine     sandbox.FullEngine // The engine is not embedded, so that every call of a new method needs a check here.
	policy     Policy
	owner      Owner
	translator PathTranslator
	gate       *Gate
}

// Guard returns an engine that does only what the policy permits to the owner, and hides the containers of other owners.
// Closing it does not close the underlying engine.
func Guard(engine sandbox.FullEngine, policy Policy, owner Owner, places PathTranslator, gate *Gate) *Guarded {
	return &Guarded{Engine: engine, policy: policy, owner: owner, translator: places, gate: gate}
}

// Close does nothing: all guards share the underlying engine.
func (g *Guarded) Close() error { return nil }

// Info implements [sandbox.Engine].
func (g *Guarded) Info(ctx context.Context) (sandbox.Info, error) { return g.Engine.Info(ctx) }

// Volumes implements [sandbox.Engine]. It lists only the private volumes of the owner's sandboxes.
func (g *Guarded) Volumes(ctx context.Context, prefix string, labels map[string]string) ([]sandbox.Volume, error) {
	found, err := g.Engine.Volumes(ctx, sandbox.VolumePrefix, labels)
	return slices.DeleteFunc(found, func(v sandbox.Volume) bool {
		mine := v.Labels[sandbox.LabelVolume] == g.owner.Volume && v.Labels[LabelOwner] == strconv.FormatUint(uint64(g.owner.UID), 10) && (g.owner.Operator || g.owner.hasProfile(v.Labels[sandbox.LabelProfile]))
		return !mine || !strings.HasPrefix(v.Name, prefix)
	}), err
}

// Image implements [sandbox.Engine] for the images that the policy allows.
func (g *Guarded) Image(ctx context.Context, ref string) (sandbox.Image, error) {
	if err := g.policy.checkImage(ref); err != nil {
		return sandbox.Image{}, err
	}
	return g.Engine.Image(ctx, ref)
}

// Pull implements [sandbox.Engine] for the images that the policy allows.
func (g *Guarded) Pull(ctx context.Context, ref string) error {
	if err := g.policy.checkImage(ref); err != nil {
		return err
	}
	return g.Engine.Pull(ctx, ref)
}

// labels returns the labels with which the engine finds the owner's containers.
func (g *Guarded) labels() map[string]string {
	if g.owner.Operator {
		return map[string]string{sandbox.LabelAgent: "1", LabelOwner: "", sandbox.LabelVolume: g.owner.Volume}
	}
	return map[string]string{LabelOwner: strconv.FormatUint(uint64(g.owner.UID), 10), sandbox.LabelVolume: g.owner.Volume}
}

// owns reports whether a container belongs to the owner. If a container was made while the engine had another [RootMode], it
// belongs to no owner, and the service removes it.
func (g *Guarded) owns(c sandbox.Container) bool {
	if c.Labels[LabelOwner] != "" && RootMode(c.Labels[LabelRoot]) != g.gate.KnownRootMode() {
		return false
	}
	for name, value := range g.labels() {
		if got, has := c.Labels[name]; !has || value != "" && got != value {
			return false
		}
	}
	return c.ID != g.translator.containerID && !isReplaced(c) && (g.owner.Operator || g.owner.hasProfile(c.Labels[sandbox.LabelProfile]))
}

// hasProfile reports whether a profile is the owner's. The volume's own profile is called "default", and in other versions of
// the agent "custom".
func (o Owner) hasProfile(profile string) bool {
	return profile == o.Profile || o.Profile == "default" && profile == "custom"
}

// List implements [sandbox.Engine]. It lists only the owner's containers.
func (g *Guarded) List(ctx context.Context, labels map[string]string) ([]sandbox.Container, error) {
	want := g.labels()
	for name, value := range labels {
		if own, has := want[name]; has && value != "" && value != own {
			return nil, nil // The caller asks for labels of another owner.
		} else if !has {
			want[name] = value
		}
	}
	found, err := g.gate.listContainers(ctx, g.Engine, want)
	return slices.DeleteFunc(found, func(c sandbox.Container) bool { return !g.owns(c) }), err
}

// Inspect implements [sandbox.Engine]. For another owner's container, it returns the same error as for a missing one.
func (g *Guarded) Inspect(ctx context.Context, id string) (sandbox.Container, error) {
	c, err := g.Engine.Inspect(ctx, id)
	if errors.Is(err, sandbox.ErrGone) && len(id) >= 12 {
		if again, listErr := g.Engine.List(ctx, map[string]string{labelOldIDPrefix + id[:12]: ""}); listErr == nil && len(again) > 0 {
			c, err = g.Engine.Inspect(ctx, again[0].ID)
		}
	}
	if err != nil {
		return c, err
	}
	if !g.owns(c) {
		return sandbox.Container{}, fmt.Errorf("cannot look at container %s: %w", id, sandbox.ErrGone)
	}
	return c, nil
}

// withOwned calls do with the full id of a container. For another owner's container, it returns the same error as for a
// missing one.
func (g *Guarded) withOwned(ctx context.Context, id string, do func(id string) error) error {
	c, err := g.Inspect(ctx, id)
	if err != nil {
		return err
	}
	return do(c.ID)
}

// Create implements [sandbox.Engine]. It creates only one container of a user at a time, because it must count the user's
// containers before it creates the next.
func (g *Guarded) Create(ctx context.Context, spec sandbox.Spec) (string, error) {
	if g.policy.MaxContainers > 0 && !g.owner.Operator {
		release, err := g.gate.lockKey(ctx, fmt.Sprint("user ", g.owner.UID))
		if err != nil {
			return "", fmt.Errorf("cannot create a container: another one is being created: %w", err)
		}
		defer release()
		there, err := g.Engine.List(ctx, g.labels())
		if err == nil && len(there) >= g.policy.MaxContainers {
			err = &RefusedError{fmt.Sprintf("another container besides %d", len(there)), "remove one with: hinit sandbox rm"}
		}
		if err != nil {
			return "", err
		}
	}
	return g.createContainer(ctx, spec, nil)
}

// maxSpecBytes limits the size of a container's Spec. The guard stores the Spec in a label, and every list of containers
// contains all labels.
const maxSpecBytes = 16 << 10

// createContainer checks a Spec, limits its mounts and the rights of root, and creates the container with the owner's labels
// and the labels in more.
func (g *Guarded) createContainer(ctx context.Context, spec sandbox.Spec, more map[string]string) (string, error) {
	specJSON, err := json.Marshal(spec)
	if err != nil {
		return "", &RefusedError{"a limit that is not a number", ""}
	}
	if len(specJSON) > maxSpecBytes {
		return "", &RefusedError{fmt.Sprintf("a container of %d bytes of flags", len(specJSON)), fmt.Sprintf("the most is %d", maxSpecBytes)}
	}
	root, err := g.gate.DetermineRootMode(ctx, g.Engine, g.policy)
	if err != nil {
		return "", err
	}
	spec.Labels = lo.Assign(spec.Labels)
	if err := g.policy.Check(&spec); err != nil {
		return "", err
	}
	if profile, has := spec.Labels[sandbox.LabelProfile]; has && !g.owner.Operator && !g.owner.hasProfile(profile) {
		return "", &RefusedError{"a container of the profile " + strconv.Quote(profile), "this is " + strconv.Quote(g.owner.Profile)}
	}
	spec.Labels[LabelOwner] = strconv.FormatUint(uint64(g.owner.UID), 10)
	spec.Labels[sandbox.LabelAgent], spec.Labels[sandbox.LabelVolume] = "1", g.owner.Volume
	if spec.Labels[sandbox.LabelProfile] == "" {
		spec.Labels[sandbox.LabelProfile] = g.owner.Profile
	}
	maps.Copy(spec.Labels, more)
	spec.Labels[LabelRoot], spec.Labels[labelSpec] = string(root), string(specJSON)
	switch root {
	case RootPrivate:
		if err := g.makePrivate(ctx, &spec); err != nil {
			return "", err
		}
	case RootCaller:
		g.runAsCaller(&spec)
	case RootIsolated:
	}
	if err := g.resolveMounts(&spec); err != nil {
		return "", err
	}
	if err := g.gate.addGate(ctx, g.Engine, &spec); err != nil {
		return "", err
	}
	return g.Engine.Create(ctx, spec)
}

// Start implements [sandbox.Engine]. If the container mounts directories of the owner, it waits at its gate until the guard
// has checked each mount. The mount must show the file at the path that the owner has asked for, and the path must contain no
// link. If a mount shows another file, the guard kills the container before its command runs.
func (g *Guarded) Start(ctx context.Context, id string) error {
	c, err := g.Inspect(ctx, id)
	if err != nil {
		return err
	}
	if _, err := g.gate.DetermineRootMode(ctx, g.Engine, g.policy); err != nil || !g.owns(c) {
		return errors.Join(err, fmt.Errorf("cannot start container %s: %w", id, sandbox.ErrGone))
	}
	if c.State != sandbox.Running && mustRecreate(c) {
		release, err := g.gate.lockContainer(ctx, c.ID)
		if err != nil {
			return err
		}
		defer release()
		if c, err = g.Inspect(ctx, c.ID); err != nil || c.State == sandbox.Running {
			return err // Another caller has already replaced or started the container.
		}
		_, err = g.replaceContainer(ctx, c)
		return err
	}
	return g.startAndPassGate(ctx, c.ID)
}

// startAndPassGate starts a container and lets it pass its gate.
func (g *Guarded) startAndPassGate(ctx context.Context, id string) error {
	release, err := g.gate.lockContainer(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	c, err := g.Engine.Inspect(ctx, id)
	if err == nil && c.State == sandbox.Running {
		return g.ensureGatePassed(ctx, id) // Another caller has already started the container.
	}
	if err := g.Engine.Start(ctx, id); err != nil {
		// The engine may have removed the volume with the gate program, and made an empty one of the same name. So forget the
		// volume. The next addGate then puts the program on it again.
		g.gate.volume.Store(nil)
		return err
	}
	if c, err = g.Engine.Inspect(ctx, id); err == nil {
		var waits bool
		if waits, err = g.passGate(ctx, c); err == nil && !waits && gateProgram(c) != "" {
			err = errors.New("cannot open the gate of a sandbox: it was open at the start")
		}
	}
	return g.stopOnError(ctx, id, err)
}

// stopOnError kills the container if err is not nil: its gate may be open although the mounts were not checked. It returns
// err, joined with the error of the kill.
func (g *Guarded) stopOnError(ctx context.Context, id string, err error) error {
	if err != nil {
		err = errors.Join(err, g.Engine.Stop(context.WithoutCancel(ctx), id, 0))
	}
	return err
}

// ensureGatePassed lets a running container pass its gate, unless this service knows that it has passed. Before that, its mounts
// may be wrong. The caller holds the container's lock.
func (g *Guarded) ensureGatePassed(ctx context.Context, id string) error {
	c, err := g.Inspect(ctx, id)
	if err != nil || c.State != sandbox.Running || !c.Started.IsZero() && g.gate.recordOf(c.ID, 0).passedStartTime.Equal(c.Started) {
		return err
	}
	waits, err := g.passGate(ctx, c)
	if waits {
		return g.stopOnError(ctx, id, err)
	}
	return err
}

// Unpause implements [sandbox.Engine].
func (g *Guarded) Unpause(ctx context.Context, id string) error {
	return g.withOwned(ctx, id, func(id string) error { return g.Engine.Unpause(ctx, id) })
}

// Stop implements [sandbox.Engine].
func (g *Guarded) Stop(ctx context.Context, id string, grace time.Duration) error {
	return g.withOwned(ctx, id, func(id string) error { return g.Engine.Stop(ctx, id, grace) })
}

// Remove implements [sandbox.Engine].
func (g *Guarded) Remove(ctx context.Context, id string) error {
	err := g.withOwned(ctx, id, func(id string) error { return g.Engine.Remove(ctx, id) })
	if errors.Is(err, sandbox.ErrGone) {
		return nil
	}
	return err
}

// Exec implements [sandbox.Engine]. It runs nothing in a container that has not passed its gate.
func (g *Guarded) Exec(ctx context.Context, id string, spec sandbox.ExecSpec) (sandbox.Attachment, error) {
	c, err := g.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	// Keep the lock until the exec has begun, so that the container isn't restarted in between.
	release, err := g.gate.lockContainer(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := g.ensureGatePassed(ctx, c.ID); err != nil {
		return nil, err
	}
	return g.Engine.Exec(ctx, c.ID, spec)
}

// CopyIn implements [sandbox.Engine], but only returns an error. To copy into a container, an engine mounts all of the
// container's mounts again, by name. The owner of one mount could then redirect another mount to anywhere on the host.
func (g *Guarded) CopyIn(context.Context, string, string, io.Reader) error { return sandbox.ErrRefused }

// Logs implements [sandbox.Engine].
func (g *Guarded) Logs(ctx context.Context, id string, follow bool, stdout, stderr io.Writer) error {
	return g.withOwned(ctx, id, func(id string) error { return g.Engine.Logs(ctx, id, follow, stdout, stderr) })
}
