package policy

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
)

// Root says what the processes of a sandbox are outside of it.
type Root string

// The kinds of Root.
const (
	// RootIsolated: they may be root inside, because the engine makes another user of it outside.
	RootIsolated Root = "isolated"
	// RootCaller: they have the user and group of the caller, no capability, and no way to gain one.
	RootCaller Root = "caller"
	// RootPrivate: they may be root inside, and share no file with anybody.
	RootPrivate Root = "private"
)

// Labels that only the guard sets.
const (
	LabelRoot   = "hinit-root"   // of a container: its Root
	labelCopies = "hinit-copies" // of a container: what is copied into it at each start
	labelSpec   = "hinit-spec"   // of a container: what it is made from, where a start makes it again
	labelWas    = "hinit-was-"   // of a container: the begin of an id that it had before it was made again
)

// String says in words what a Root means.
func (r Root) String() string {
	switch r {
	case RootIsolated:
		return "root inside is another user outside: the engine maps users"
	case RootPrivate:
		return "root inside, with volumes of the sandbox's own (HINIT_SANDBOX_ROOT=private)"
	case RootCaller:
	}
	return "commands run as their caller, without root: this engine does not keep root inside apart from root here"
}

// RootWays names the ways to have root inside.
const RootWays = "to have root there, set HINIT_SANDBOX_ROOT=private for hinit sandbox serve, or use an engine with userns-remap"

// RootOf asks the engine what root inside is. An engine that maps users isolates root only from a process whose own users are not
// mapped. To another container of the same engine, root inside is the same user as its own root.
func (p Policy) RootOf(info sandbox.Info) Root {
	switch {
	case p.Private:
		return RootPrivate
	case info.Users != "" && allUsers("/proc/self/uid_map"):
		return RootIsolated
	}
	return RootCaller
}

// allUsers says whether a process has all users of the machine, each as itself.
func allUsers(uidMap string) bool {
	text, err := os.ReadFile(uidMap)
	return err == nil && slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
}

// asCaller changes a spec so that all commands of the container run as its owner.
func (g *Guarded) asCaller(spec *sandbox.Spec) {
	id := g.owner.identity()
	spec.User, spec.CapAdd, spec.CapDrop, spec.Groups = fmt.Sprintf("%d:%d", id.UID, id.GID), nil, []string{"ALL"}, nil
	const home = "/root"
	if !slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool { return path.Clean(m.Target) == home }) {
		options := fmt.Sprintf("rw,exec,nosuid,size=64m,mode=0700,uid=%d,gid=%d", id.UID, id.GID) // the image's is root's
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Type: "tmpfs", Target: home, Options: options})
	}
	if !slices.ContainsFunc(spec.Env, func(e string) bool { return strings.HasPrefix(e, "HOME=") }) {
		spec.Env = append(slices.Clone(spec.Env), "HOME="+home)
	}
}

// identity is whose rights the owner's containers have.
func (o Owner) identity() fsutil.Identity {
	if o.Actor != nil {
		return o.Actor.Identity()
	}
	return fsutil.Identity{UID: 65534, GID: 65534}
}

// private removes every directory of the owner's from a container. Volumes replace the writable ones, and the others are copied
// in at each start.
func (g *Guarded) private(ctx context.Context, spec *sandbox.Spec) error {
	copies := map[string]string{}
	var mounts []sandbox.Mount
	for _, m := range spec.Mounts {
		if m.Type != "bind" {
			mounts = append(mounts, m)
			continue
		}
		source, info, err := g.source(m)
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
		if there, err := g.Volumes(ctx, "", nil); err != nil || len(there) >= volumesMost {
			return errors.Join(err, &RefusedError{fmt.Sprintf("a volume besides the %d that there are", len(there)), "remove directories that sandboxes have mounted"})
		}
		place, ok := g.places.Outside(source) // the names inside are the same in every container of the image
		if !ok {
			place = g.places.self + source // it ends with this container
		}
		hash := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s\x00%s", g.owner.UID, g.owner.Profile, place))
		name := sandbox.VolumePrefix + g.owner.Profile + "-" + hex.EncodeToString(hash[:8])
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

// Gone says whether the directory is gone in whose place a private volume stands. The volume goes too.
func (p Policy) Gone(v sandbox.Volume) bool {
	dir, rel, err := p.open(v.Labels[sandbox.LabelSource], fsutil.Self())
	if err != nil {
		return false
	}
	defer dir.Close()
	empty := true
	if err := dir.EachName("", func(string, fs.FileMode) bool { empty = false; return false }); err != nil || empty {
		return false // it seems that nothing is mounted there
	}
	_, err = dir.Lstat(rel)
	return errors.Is(err, fs.ErrNotExist)
}

// volumesMost is how many private volumes one user may have.
const volumesMost = 512

// copyMost is how many bytes of the owner's files are copied into a container at a start.
const copyMost = 1 << 30

// copyTime is how long copying into a container may take.
const copyTime = 2 * time.Minute

// copyIn copies the owner's read-only mounts into a container that waits at its gate. The program inside unpacks them. The engine
// would mount the container's volumes a second time, by names that another container of the owner's can change, and would write
// below a tmpfs.
func (g *Guarded) copyIn(ctx context.Context, c sandbox.Container) error {
	var copies map[string]string
	if text := c.Labels[labelCopies]; text == "" {
		return nil
	} else if err := json.Unmarshal([]byte(text), &copies); err != nil {
		return fmt.Errorf("cannot read the label %s: %w", labelCopies, err)
	}
	unpack, err := g.Engine.Exec(ctx, c.ID, sandbox.ExecSpec{Argv: []string{gateOf(c), "unpack", "/"}, User: "0:0", Stdin: true})
	if err != nil {
		return err
	}
	defer unpack.Close()
	defer context.AfterFunc(ctx, func() { _ = unpack.Close() })() // ends both copies
	packed := make(chan error, 1)
	go func() {
		packing := tar.NewWriter(&limited{unpack, copyMost})
		var err error
		for target, source := range copies {
			if err == nil {
				err = g.packSource(packing, source, strings.TrimPrefix(target, "/"))
			}
		}
		if err == nil {
			err = errors.Join(packing.Close(), unpack.CloseWrite())
		}
		if err != nil {
			_ = unpack.Close() // what came is not all of it
		}
		packed <- err
	}()
	said, err := io.ReadAll(unpack)
	_ = unpack.Close() // ends the packing
	if packErr := <-packed; string(said) != "unpacked\n" {
		return fmt.Errorf("cannot copy into the container %.12s: %w %s", c.ID, errors.Join(packErr, err), unpack.Said())
	}
	return nil
}

// packSource packs what is at a path of this process, with the owner's rights and without links.
func (g *Guarded) packSource(w *tar.Writer, source, name string) error {
	dir, rel, err := g.policy.open(source, g.owner.Actor)
	if err != nil {
		return err
	}
	defer dir.Close()
	return archive.Add(w, dir, rel, name)
}

// limited refuses to write more than is left.
type limited struct {
	io.Writer
	left int64
}

func (l *limited) Write(data []byte) (int, error) {
	if l.left -= int64(len(data)); l.left < 0 {
		return 0, &RefusedError{fmt.Sprintf("to copy more than %d MiB into a sandbox", copyMost>>20), "mount less of it read-only"}
	}
	return l.Writer.Write(data)
}

// remakes says whether a container is made again where others are started again. Its owner could lay a link where a mount is to be, and lead
// the mount over the gate, whose name is known by now. A mount directly below the root can't be led elsewhere.
func remakes(c sandbox.Container) bool {
	bound := slices.ContainsFunc(c.Mounts, func(m sandbox.Mount) bool { return m.Type == "bind" })
	return bound && !c.Started.IsZero() && slices.ContainsFunc(c.Mounts, func(m sandbox.Mount) bool {
		return m.Type != "tmpfs" && strings.Count(path.Clean(m.Target), "/") > 1 // a tmpfs is empty; a volume of the image's is not
	})
}

// wasMost is how many earlier ids a container keeps.
const wasMost = 16

// remake makes a container again, with another name of its gate, and removes the old one. The old id leads to the new container.
func (g *Guarded) remake(ctx context.Context, c sandbox.Container) (id string, err error) {
	var spec sandbox.Spec
	if err := json.Unmarshal([]byte(c.Labels[labelSpec]), &spec); err != nil {
		return "", &RefusedError{"to start a container again that an older version of hinit has made", "remove it, and make another"}
	}
	if err := g.Engine.Rename(ctx, c.ID, c.Name+replacedMark+strings.ToLower(rand.Text()[:8])); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Engine.Rename(context.WithoutCancel(ctx), c.ID, c.Name))
		}
	}()
	spec.Name = c.Name
	was := map[string]string{labelWas + c.ID[:12]: ""}
	for name := range c.Labels {
		if strings.HasPrefix(name, labelWas) && len(was) < wasMost {
			was[name] = ""
		}
	}
	if id, err = g.make(ctx, spec, was); err != nil {
		return "", err
	}
	if err = g.startNow(ctx, id); err != nil {
		return "", errors.Join(err, g.Engine.Remove(context.WithoutCancel(ctx), id))
	}
	_ = g.Engine.Remove(context.WithoutCancel(ctx), c.ID) // else the service sweeps it: see [Guarded.RemoveReplaced]
	return id, nil
}

// replacedMark is in the name of a container that was made again, until it is removed. No caller can give such a name.
const replacedMark = "-replaced-"

func replaced(c sandbox.Container) bool { return strings.Contains(c.Name, replacedMark) }

// RemoveReplaced removes a container that was made again and could not be removed then. It does nothing to another one.
func (g *Gate) RemoveReplaced(ctx context.Context, engine sandbox.Engine, c sandbox.Container) error {
	if !replaced(c) {
		return nil
	}
	release, err := g.hold(ctx, c.ID) // it may be made again at this moment, and get its name back if that fails
	if err != nil {
		return err
	}
	defer release()
	if c, err := engine.Inspect(ctx, c.ID); err != nil || !replaced(c) {
		return nil //nolint:nilerr // it is gone
	}
	return engine.Remove(ctx, c.ID)
}
