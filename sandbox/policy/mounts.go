package policy

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/archive"
	"hinit/sandbox/gate"
)

// resolveMounts checks the source of every bind mount and creates missing sources with the owner's rights. It replaces each
// source by the path on the engine's machine. The result bound is true if the Spec has a bind mount.
func (g *Guarded) resolveMounts(spec *sandbox.Spec) (bound bool, err error) {
	mounts := make([]sandbox.Mount, len(spec.Mounts))
	for i, m := range spec.Mounts {
		if m.Type == "bind" {
			bound = true
			source, _, err := g.resolveSource(m)
			if err != nil {
				return false, err
			}
			outside, ok := g.places.ToEngine(source)
			if !ok {
				return false, g.refusedMount(m, errors.New("the engine does not have it: it is on no volume of this container"))
			}
			readOnly, covered := g.places.Within(source)
			if covered {
				return false, g.refusedMount(m, errors.New("something else is mounted below it"))
			}
			m.Source, m.ReadOnly = outside, m.ReadOnly || readOnly
			m.CreateHostParent = false // otherwise the engine would create the source as root, and follow symbolic links
		}
		mounts[i] = m
	}
	spec.Mounts = mounts
	return bound, nil
}

func (g *Guarded) refusedMount(m sandbox.Mount, why error) error {
	return &RefusedError{"a mount of " + m.Source + " (" + why.Error() + ")", "mount something below " + strings.Join(g.policy.Roots, " or ")}
}

// resolveSource checks the source of a bind mount, and returns it as a path of this process. It doesn't follow symbolic links
// below an allowed root.
func (g *Guarded) resolveSource(m sandbox.Mount) (string, fs.FileInfo, error) {
	if rest, ok := cutDir(m.Source, g.owner.State); ok && g.owner.State != "" {
		m.Source = filepath.Join(g.owner.Dir, rest)
	}
	dir, rel, err := g.policy.openRoot(m.Source, g.owner.Actor)
	if err != nil {
		return "", nil, g.refusedMount(m, err)
	}
	defer dir.Close()
	info, err := dir.Lstat(rel)
	if errors.Is(err, fs.ErrNotExist) && m.CreateHostParent {
		if err = dir.Mkdir(rel, 0o755); err == nil && g.gate.Root() == RootIsolated {
			_, err = dir.Chmod(rel, 0o777) // root inside maps to a user that is neither the owner nor in the owner's group
		}
		if err == nil {
			info, err = dir.Lstat(rel)
		}
	}
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = errors.New("it is neither a directory nor a regular file")
	}
	if err != nil {
		return "", nil, g.refusedMount(m, err)
	}
	return filepath.Join(dir.Path(), rel), info, nil
}

// fileIdentity returns the device and inode number of the file at a path on the engine's machine. It doesn't follow symbolic
// links.
func (g *Guarded) fileIdentity(outside string) (string, error) {
	inside, err := g.insidePath(outside)
	if err != nil {
		return "", err
	}
	_, info, err := g.resolveSource(sandbox.Mount{Source: inside})
	if err != nil {
		return "", err
	}
	st := fsutil.Stat(info)
	return fmt.Sprint(st.Dev, " ", st.Ino), nil
}

// setAccessTime sets the access time of the file at a path on the engine's machine, as the owner of the sandboxes. It doesn't follow
// symbolic links.
func (g *Guarded) setAccessTime(outside string, to time.Time) error {
	inside, err := g.insidePath(outside)
	if err != nil {
		return err
	}
	dir, rel, err := g.policy.openRoot(inside, g.owner.Actor)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.SetAccessTime(rel, to)
}

// insidePath turns a path on the engine's machine into a path of this process.
func (g *Guarded) insidePath(outside string) (string, error) {
	inside, ok := g.places.FromEngine(outside)
	if !ok {
		return "", fmt.Errorf("cannot look at the mount of %s: it is not on a volume of this container any more", outside)
	}
	return inside, nil
}

// Gate manages the gate program: the first program of each container that mounts directories of its owner. The program waits
// until its mounts have been checked. The program is stored on a volume of the engine. Gate also records which containers have
// passed. All guards of an engine share one Gate.
type Gate struct {
	Program string // the path of a statically linked hinit-sandbox-helper

	fillLock sync.Mutex
	listLock sync.Mutex

	volume atomic.Pointer[string] // the name of the volume, once the program is on it
	root   atomic.Pointer[Root]

	mu         sync.Mutex
	containers map[string]*gateRecord // by the container's id, and for [Guarded.Create] by user
}

// gateRecord is what the Gate knows about one container, or the lock of a user.
type gateRecord struct {
	lock        chan struct{} // a lock: holds one element while the container is locked
	users       atomic.Int32  // number of callers that hold the lock or wait for it; increased only under mu
	passedStart time.Time     // the start time of the container when it last passed its gate
}

// record returns the record of a container, and creates it if necessary. The caller holds mu.
func (g *Gate) record(id string) *gateRecord {
	if len(g.containers) > 4096 { // drop unused records; then the gates of these containers are asked again
		maps.DeleteFunc(g.containers, func(_ string, c *gateRecord) bool { return c.users.Load() == 0 })
	}
	if g.containers == nil {
		g.containers = map[string]*gateRecord{}
	}
	if g.containers[id] == nil {
		g.containers[id] = &gateRecord{lock: make(chan struct{}, 1)}
	}
	return g.containers[id]
}

// AskRoot asks the engine how it maps root inside its containers to users of the machine. It returns the resulting Root, and
// stores it for [Gate.Root].
func (g *Gate) AskRoot(ctx context.Context, engine sandbox.Engine, p Policy) (Root, error) {
	info, err := engine.Info(ctx)
	if err != nil {
		return "", err
	}
	root := p.RootOf(info)
	g.root.Store(&root)
	return root, nil
}

// list lists containers. It serves one caller at a time, because an answer contains all labels of each container and is large.
func (g *Gate) list(ctx context.Context, engine sandbox.Engine, labels map[string]string) ([]sandbox.Container, error) {
	g.listLock.Lock()
	defer g.listLock.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return engine.List(ctx, labels)
}

// Root returns the last result of AskRoot.
func (g *Gate) Root() Root { return lo.FromPtr(g.root.Load()) }

// lockContainer locks a container, so that no command runs in it while it passes its gate. It waits at most gateTime, even if the
// engine hangs.
func (g *Gate) lockContainer(ctx context.Context, id string) (release func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, gateTime, fmt.Errorf("%w about it in time", sandbox.ErrNoEngine))
	defer cancel()
	if release, err = g.lock(ctx, id); err != nil {
		err = fmt.Errorf("cannot use the container %.12s: %w", id, err)
	}
	return release, err
}

// lock takes the lock of a container, or of the user whose containers are counted. It fails only if ctx ends.
func (g *Gate) lock(ctx context.Context, key string) (release func(), err error) {
	g.mu.Lock()
	c := g.record(key)
	c.users.Add(1)
	g.mu.Unlock()
	if !pause.Send(ctx, c.lock, struct{}{}) {
		c.users.Add(-1)
		return nil, context.Cause(ctx)
	}
	return func() { <-c.lock; c.users.Add(-1) }, nil
}

// recordPassed records that a container has passed its gate. The parameter started is the start time of the container.
func (g *Gate) recordPassed(id string, started time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record(id).passedStart = started
}

// passed reports whether a container has passed its gate since its last start.
func (g *Gate) passed(c sandbox.Container) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	past := g.record(c.ID).passedStart
	return !past.IsZero() && past.Equal(c.Started)
}

// addGate mounts the volume with the gate program in a container. If bound is true, the container gets files of its owner,
// so it must wait at its gate. In this case the gate program becomes the container's entry point.
func (g *Gate) addGate(ctx context.Context, engine sandbox.FullEngine, spec *sandbox.Spec, bound bool) error {
	volume, err := g.fillVolume(ctx, engine, spec.Image)
	if err != nil {
		return fmt.Errorf("cannot make a volume with the gate of sandboxes: %w", err)
	}
	dir := gate.Dir + strings.ToLower(rand.Text())
	spec.Mounts = append(spec.Mounts, sandbox.Mount{Type: "volume", Source: volume, Target: dir, ReadOnly: true})
	if !bound {
		return nil
	}
	image, err := engine.Image(ctx, spec.Image)
	if err != nil {
		return err
	}
	entry := spec.Entrypoint
	if len(entry) == 0 {
		if entry = image.Entrypoint; len(spec.Cmd) == 0 {
			spec.Cmd = image.Cmd
		}
	}
	verb := "gate"
	if spec.Init {
		// Don't let the engine's own init be the first process. A link in one mount can redirect another mount over the path of
		// that init.
		verb, spec.Init = "gate-init", false
	}
	spec.Entrypoint = append([]string{path.Join(dir, gate.Name), verb}, entry...)
	return nil
}

// gateProgram returns the path of the gate program at which a container waits at each start. It is "" if the container does not
// wait.
func gateProgram(c sandbox.Container) string {
	at := slices.IndexFunc(c.Mounts, func(m sandbox.Mount) bool { return m.Type == "volume" && strings.HasPrefix(m.Target, gate.Dir) })
	if at < 0 || c.Labels[labelCopies] == "" && !slices.ContainsFunc(c.Mounts, func(m sandbox.Mount) bool { return m.Type == "bind" }) {
		return ""
	}
	return path.Join(c.Mounts[at].Target, gate.Name)
}

// GatePrefix is the prefix of the names of all volumes that hold a gate program.
const GatePrefix = "hinit-sandbox-gate-"

// Volume returns the name of the volume for new containers, or "" if it was not filled yet.
func (g *Gate) Volume() string { return lo.FromPtr(g.volume.Load()) }

// fillVolume copies the gate program to a volume and returns the volume's name. It copies through a container that is never
// started. It does so once for each version of the program.
func (g *Gate) fillVolume(ctx context.Context, engine sandbox.FullEngine, image string) (string, error) {
	if cluster, is := engine.(sandbox.Cluster); is {
		return cluster.Gate(), nil
	}
	g.fillLock.Lock()
	defer g.fillLock.Unlock()
	if name := g.Volume(); name != "" {
		if there, err := engine.Volumes(ctx, name, nil); err == nil && len(there) > 0 {
			return name, nil
		}
	}
	program, err := os.ReadFile(g.Program)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(program)
	volume := fmt.Sprintf("%s%x", GatePrefix, hash[:6])
	id, err := engine.Create(ctx, sandbox.Spec{
		Image: image, Cmd: []string{"none"}, Labels: map[string]string{LabelOwner: "gate"}, Network: "none",
		Mounts: []sandbox.Mount{{Type: "volume", Source: volume, Target: gate.Dir + "fill"}},
	})
	if err != nil {
		return "", err
	}
	if !hasProgram(ctx, engine, id, program) {
		var file *bytes.Buffer
		if file, err = archive.OneFile(gate.Name, 0o555, program); err == nil {
			err = engine.CopyIn(ctx, id, gate.Dir+"fill", file)
		}
	}
	if err = errors.Join(err, engine.Remove(context.WithoutCancel(ctx), id)); err != nil {
		return "", err
	}
	g.volume.Store(&volume)
	debug.FreeOSMemory() // the copies of the program are large and no longer needed
	return volume, nil
}

// hasProgram reports whether the volume already has the program. Another service of the same engine may have copied it. In this
// case the program must not be copied again, because the engine would first remove the file. A container that starts at that
// moment would not find the file.
func hasProgram(ctx context.Context, engine sandbox.FullEngine, id string, program []byte) bool {
	r, err := engine.CopyOut(ctx, id, gate.Dir+"fill/"+gate.Name)
	if err != nil {
		return false
	}
	defer r.Close()
	archive := tar.NewReader(r)
	h, err := archive.Next()
	if err != nil || h.Typeflag != tar.TypeReg || h.Mode&0o777 != 0o555 || h.Size != int64(len(program)) {
		return false
	}
	there, err := io.ReadAll(archive)
	return err == nil && bytes.Equal(there, program)
}
