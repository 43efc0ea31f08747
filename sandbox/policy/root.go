package policy

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"hinit/internal/fsutil"
	"hinit/sandbox"
	"hinit/sandbox/archive"
	"hinit/sandbox/gate"
)

// RootMode describes the power over the machine that a process with user id 0 in a sandbox has. [Policy.RootModeOf] determines it
// for an engine.
type RootMode string

// The values of RootMode. With each of them, root inside has no power outside.
const (
	// RootIsolated means that processes may be root inside, because the engine maps root to an unprivileged user outside.
	RootIsolated RootMode = "isolated"
	// RootCaller means that processes have the user and group of the caller, no capabilities, and no way to gain any.
	RootCaller RootMode = "caller"
	// RootPrivate means that processes may be root inside, but share no file with any user of the machine.
	RootPrivate RootMode = "private"
)

// Labels that only the guard sets.
const (
	LabelRoot        = "hinit-root"   // Label with the RootMode of a container.
	labelCopies      = "hinit-copies" // Label with the files that are copied into the container at each start.
	labelSpec        = "hinit-spec"   // Label with the Spec that the caller asked for, from which the container can be created again.
	labelOldIDPrefix = "hinit-was-"   // Prefix of labels with the first digits of earlier IDs of the container.
)

// String describes a RootMode for the output of commands.
func (r RootMode) String() string {
	switch r {
	case RootIsolated:
		return "root inside is another user outside: the engine maps users"
	case RootPrivate:
		return "root inside, with volumes of the sandbox's own (HINIT_SANDBOX_ROOT=private)"
	case RootCaller:
	}
	return "commands run as their caller, without root: this engine does not keep root inside apart from root here"
}

// RootAdvice tells an operator how sandboxes can have root inside. Error messages include this text.
const RootAdvice = "to have root there, set HINIT_SANDBOX_ROOT=private for hinit sandbox serve, or use an engine with userns-remap"

// RootModeOf returns the RootMode for an engine. An engine that maps users maps root of all its containers to one user. If this
// process ran in such a container, it would be the same user as root in the sandboxes. So RootModeOf returns RootIsolated only if
// its own users are not mapped.
func (p Policy) RootModeOf(info sandbox.Info) RootMode {
	switch {
	case p.PrivateRoot:
		return RootPrivate
	case info.UserMapping != "" && mapsAllUsers("/proc/self/uid_map"):
		return RootIsolated
	}
	return RootCaller
}

// mapsAllUsers reports whether a uid_map file (user_namespaces(7)) maps every user of the machine to itself.
func mapsAllUsers(uidMap string) bool {
	text, err := os.ReadFile(uidMap)
	return err == nil && slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
}

// runAsCaller changes a Spec so that all commands of the container run as its owner, for [RootCaller].
func (g *Guarded) runAsCaller(spec *sandbox.Spec) {
	id := fsutil.Identity{UID: 65534, GID: 65534}
	if g.owner.Actor != nil {
		id = g.owner.Actor.Identity()
	}
	spec.User, spec.CapAdd, spec.CapDrop, spec.Groups = fmt.Sprintf("%d:%d", id.UID, id.GID), nil, []string{"ALL"}, nil
	const home = "/root"
	if !slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool { return path.Clean(m.Target) == home }) {
		// The image's /root belongs to root, so mount a tmpfs of the owner over it.
		options := fmt.Sprintf("rw,exec,nosuid,size=64m,mode=0700,uid=%d,gid=%d", id.UID, id.GID)
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Type: "tmpfs", Target: home, Options: options})
	}
	if !slices.ContainsFunc(spec.Env, func(e string) bool { return strings.HasPrefix(e, "HOME=") }) {
		spec.Env = append(slices.Clone(spec.Env), "HOME="+home)
	}
}

// makePrivate changes a Spec for [RootPrivate], so that the container shares no file with its owner. It replaces a writable
// mount by a private volume. The files of a read-only mount are copied into the container at each start.
func (g *Guarded) makePrivate(ctx context.Context, spec *sandbox.Spec) error {
	copies := map[string]string{}
	var mounts []sandbox.Mount
	for _, m := range spec.Mounts {
		if m.Type != "bind" {
			mounts = append(mounts, m)
			continue
		}
		source, info, err := g.resolveSource(m)
		if err != nil {
			return err
		}
		if m.ReadOnly {
			copies[path.Clean(m.Target)] = source
			continue
		}
		if !info.IsDir() {
			return &RefusedError{"a mount of the file " + m.Source + " that can be written", "mount a directory, or make it read-only"}
		}
		if there, err := g.Volumes(ctx, "", nil); err != nil || len(there) >= maxVolumes {
			return errors.Join(err, &RefusedError{fmt.Sprintf("another volume besides %d", len(there)), "remove directories that sandboxes have mounted"})
		}
		// Use the path on the engine's machine, because a path inside this container is the same in every container of its
		// image.
		place, ok := g.translator.ToEngine(source)
		if !ok {
			// Add the container's id, because a path in the container's own file system disappears with the container.
			place = g.translator.containerID + source
		}
		hash := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s\x00%s", g.owner.UID, g.owner.Profile, place))
		name := fmt.Sprintf("%s%s-%x", sandbox.VolumePrefix, g.owner.Profile, hash[:8])
		labels := map[string]string{
			LabelOwner: fmt.Sprint(g.owner.UID), sandbox.LabelSource: source, sandbox.LabelProfile: g.owner.Profile, sandbox.LabelVolume: spec.Labels[sandbox.LabelVolume],
		}
		if err := g.Engine.CreateVolume(ctx, name, labels); err != nil {
			return err
		}
		mounts = append(mounts, sandbox.Mount{Type: "volume", Source: name, Target: m.Target})
	}
	spec.Mounts = mounts
	if len(copies) > 0 {
		text, err := json.Marshal(copies)
		spec.Labels[labelCopies] = string(text)
		return err
	}
	return nil
}

// IsSourceGone reports whether the directory for which a private volume was made is gone. The volume can then be removed too.
func (p Policy) IsSourceGone(v sandbox.Volume) bool {
	dir, rel, err := p.openRoot(v.Labels[sandbox.LabelSource], fsutil.ProcessActor())
	if err != nil {
		return false
	}
	defer dir.Close()
	empty := true
	if err := dir.EachName("", func(string, fs.FileMode) bool { empty = false; return false }); err != nil || empty {
		return false // An empty or unreadable directory proves nothing: its volume may be unmounted for a moment.
	}
	_, err = dir.Lstat(rel)
	return errors.Is(err, fs.ErrNotExist)
}

// maxVolumes limits the number of private volumes of one user.
const maxVolumes = 512

// maxCopyBytes limits the size of the owner's files that are copied into a container at each start.
const maxCopyBytes = 1 << 30

// copyTimeout limits the time for copying the owner's files into a container.
const copyTimeout = 2 * time.Minute

// copyIn sends the owner's read-only files to the gate program, which unpacks them. The engine's own copy function is not
// safe here: it mounts the container's volumes again by name, so another container of the owner could redirect a mount. It
// also writes below a tmpfs instead of into it.
func (g *Guarded) copyIn(c sandbox.Container, q *gateConn) error {
	var copies map[string]string
	if text := c.Labels[labelCopies]; text == "" {
		return nil
	} else if err := json.Unmarshal([]byte(text), &copies); err != nil {
		return fmt.Errorf("cannot read the label %s: %w", labelCopies, err)
	}
	_, err := io.WriteString(q, gate.CommandUnpack)
	packing := tar.NewWriter(&limitedWriter{q, maxCopyBytes})
	for target, source := range copies {
		if err == nil {
			err = g.withSource(source, func(root *fsutil.Dir, rel string) error {
				return archive.Add(packing, root, rel, strings.TrimPrefix(target, "/"))
			})
		}
	}
	if err == nil {
		err = packing.Close()
	}
	if err == nil {
		_, err = q.readLine(gate.CommandUnpack)
	}
	if err != nil {
		return fmt.Errorf("cannot copy into the container %.12s: %w", c.ID, err)
	}
	return nil
}

// limitedWriter fails when it gets more bytes than left, which it reduces with each write.
type limitedWriter struct {
	io.Writer
	left int64
}

func (l *limitedWriter) Write(data []byte) (int, error) {
	if l.left -= int64(len(data)); l.left < 0 {
		return 0, &RefusedError{fmt.Sprintf("to copy more than %d MiB into a sandbox", maxCopyBytes>>20), "mount less of it read-only"}
	}
	return l.Writer.Write(data)
}

// mustRecreate reports whether a stopped container must be recreated instead of started again. After
// the first run, the owner knows the random path of the gate program. With a link in one mount, the
// owner could redirect another mount over that path. Only mounts directly below the root directory
// are safe.
func mustRecreate(c sandbox.Container) bool {
	bound := slices.ContainsFunc(c.Mounts, func(m sandbox.Mount) bool { return m.Type == "bind" })
	return bound && !c.Started.IsZero() && slices.ContainsFunc(c.Mounts, func(m sandbox.Mount) bool {
		// A tmpfs is safe too, because it is empty at the start and contains no link.
		return m.Type != "tmpfs" && strings.Count(path.Clean(m.Target), "/") > 1
	})
}

// maxOldIDs limits how many earlier ids of a container its labels keep.
const maxOldIDs = 16

// replaceContainer replaces a stopped container that must not be started again, see [mustRecreate]. The new container has the
// same Spec, but another path of the gate program. Callers can still use the id of the old container, and then reach the new
// one.
func (g *Guarded) replaceContainer(ctx context.Context, c sandbox.Container) (id string, err error) {
	var spec sandbox.Spec
	if err = json.Unmarshal([]byte(c.Labels[labelSpec]), &spec); err != nil {
		return "", fmt.Errorf("cannot read the label %s: %w", labelSpec, err)
	}
	if err := g.Engine.Rename(ctx, c.ID, c.Name+replacedContainerInfix+strings.ToLower(rand.Text()[:8])); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Engine.Rename(context.WithoutCancel(ctx), c.ID, c.Name))
		}
	}()
	spec.Name = c.Name
	was := map[string]string{labelOldIDPrefix + c.ID[:12]: ""}
	for name := range c.Labels {
		if strings.HasPrefix(name, labelOldIDPrefix) && len(was) < maxOldIDs {
			was[name] = ""
		}
	}
	if id, err = g.createContainer(ctx, spec, was); err != nil {
		return "", err
	}
	if err = g.startAndPassGate(ctx, id); err != nil {
		return "", errors.Join(err, g.Engine.Remove(context.WithoutCancel(ctx), id))
	}
	_ = g.Engine.Remove(context.WithoutCancel(ctx), c.ID) // Ignore the error: [Gate.RemoveReplaced] tries again later.
	return id, nil
}

// replacedContainerInfix is a part of the name of a replaced container, until the container is removed. Callers can't choose such
// a name.
const replacedContainerInfix = "-replaced-"

func isReplaced(c sandbox.Container) bool { return strings.Contains(c.Name, replacedContainerInfix) }

// RemoveReplaced removes a container that was replaced, but that could not be removed at that time. It ignores all other
// containers.
func (g *Gate) RemoveReplaced(ctx context.Context, engine sandbox.Engine, c sandbox.Container) error {
	if !isReplaced(c) {
		return nil
	}
	// Wait for a caller that is replacing the container, because it renames the container back after a failure.
	release, err := g.lockContainer(ctx, c.ID)
	if err != nil {
		return err
	}
	defer release()
	if c, err := engine.Inspect(ctx, c.ID); err != nil || !isReplaced(c) {
		return nil //nolint:nilerr // the container was removed
	}
	return engine.Remove(ctx, c.ID)
}
