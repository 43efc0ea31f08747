package policy

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
	"hinit/sandbox"
)

// PathTranslator translates between paths of this process and paths on the engine's machine, where the engine looks for the
// source of a mount. The two differ if this process runs in a container and uses the engine of the host.
type PathTranslator struct {
	containerID string // ID of this process's container; "" outside of a container.
	mounts      []sandbox.Mount
}

// NewPathTranslator finds out whether this process runs in a container, and asks the engine for that container's mounts.
func NewPathTranslator(ctx context.Context, engine sandbox.Engine) (PathTranslator, error) {
	var c sandbox.Container
	var err error
	if cluster, is := engine.(sandbox.Cluster); is {
		c, err = cluster.Self(ctx)
	} else if id := ownContainer("/proc/self/mountinfo"); id != "" {
		c, err = engine.Inspect(ctx, id)
	}
	if err != nil {
		return PathTranslator{}, err
	}
	p := PathTranslator{c.ID, lo.Filter(c.Mounts, func(m sandbox.Mount, _ int) bool { return m.Source != "" && m.Type != "tmpfs" })}
	// Longest target first, so that the innermost mount of a path is found first.
	slices.SortFunc(p.mounts, func(a, b sandbox.Mount) int { return len(b.Target) - len(a.Target) })
	return p, nil
}

// ownContainer returns the id of the container of this process, or "" outside of a container. It finds the id in the list of
// mounts: an engine mounts files such as /etc/hostname from a directory whose name is the container's id.
func ownContainer(mountinfo string) string {
	text, _ := os.ReadFile(mountinfo) // Ignore the error: without /proc, this process is in no container of an engine.
	// A line of proc_pid_mountinfo(5) has the root of the mount before the mount point.
	if id := regexp.MustCompile(`(?m)^\S+ \S+ \S+ (?:\S*/)?([0-9a-f]{64})(?:/\S*)? /etc/hostname `).FindSubmatch(text); id != nil {
		return string(id[1])
	}
	return ""
}

// ToEngine translates a path of this process to a path on the engine's machine. ok is false if the engine's machine does not
// have the file.
func (p PathTranslator) ToEngine(inside string) (outside string, ok bool) {
	return p.translate(inside, func(m sandbox.Mount) (from, to string) { return m.Target, m.Source })
}

// FromEngine translates a path on the engine's machine to a path of this process. ok is false if this process can't see the file.
func (p PathTranslator) FromEngine(outside string) (inside string, ok bool) {
	return p.translate(outside, func(m sandbox.Mount) (from, to string) { return m.Source, m.Target })
}

func (p PathTranslator) translate(path string, ends func(sandbox.Mount) (from, to string)) (string, bool) {
	if p.containerID == "" {
		return path, true
	}
	for _, m := range p.mounts {
		from, to := ends(m)
		if rest, in := cutDirPrefix(path, from); in {
			return filepath.Join(to, rest), true
		}
	}
	return "", false
}

// MountAt returns whether a path of this process is on a read-only mount (readOnly), and whether something else is mounted
// below it (covered). A covered path must not be mounted in a sandbox, because the sandbox would see the files that the other
// mount hides.
func (p PathTranslator) MountAt(inside string) (readOnly, covered bool) {
	found := false
	for _, m := range p.mounts {
		rest, below := cutDirPrefix(m.Target, inside)
		covered = covered || below && rest != ""
		if _, in := cutDirPrefix(inside, m.Target); in && !found {
			found, readOnly = true, m.ReadOnly
		}
	}
	return readOnly, covered
}

// cutDirPrefix returns the part of a path after the directory dir, or "" for dir itself. ok is false if the path is not in dir.
func cutDirPrefix(path, dir string) (rest string, ok bool) {
	if path == dir {
		return "", true
	}
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// TranslatingEngine is an engine for a process that may itself run in a container. It replaces the source of each bind mount
// by the path on the engine's machine. It keeps a source that it can't translate.
type TranslatingEngine struct{ sandbox.Engine }

// Create implements [sandbox.Engine].
func (t TranslatingEngine) Create(ctx context.Context, spec sandbox.Spec) (string, error) {
	places, err := NewPathTranslator(ctx, t.Engine)
	if err != nil {
		return "", err
	}
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, m := range spec.Mounts {
		if outside, ok := places.ToEngine(filepath.Clean(m.Source)); ok && m.Type == "bind" {
			spec.Mounts[i].Source = outside
		}
	}
	return t.Engine.Create(ctx, spec)
}

// resolveMounts checks the source of every bind mount, creates missing ones with the owner's rights, and replaces each source by
// the path on the engine's machine.
func (g *Guarded) resolveMounts(spec *sandbox.Spec) error {
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, m := range spec.Mounts {
		if m.Type != "bind" {
			continue
		}
		source, _, err := g.resolveSource(m)
		if err != nil {
			return err
		}
		outside, ok := g.translator.ToEngine(source)
		if !ok {
			return g.refusedMount(m, errors.New("the engine does not have it: it is on no volume of this container"))
		}
		readOnly, covered := g.translator.MountAt(source)
		if covered {
			return g.refusedMount(m, errors.New("something else is mounted below it"))
		}
		// CreateHostParent stays unset, because the engine would create the source as root, and follow symbolic links on the
		// way.
		spec.Mounts[i] = sandbox.Mount{Type: m.Type, Source: outside, Target: m.Target, ReadOnly: m.ReadOnly || readOnly, Options: m.Options}
	}
	return nil
}

func (g *Guarded) refusedMount(m sandbox.Mount, why error) error {
	return &RefusedError{"a mount of " + m.Source + " (" + why.Error() + ")", "mount something below " + strings.Join(g.policy.Roots, " or ")}
}

// resolveSource checks the source of a bind mount, and returns its path in this process. It doesn't follow symbolic links
// below an allowed root. If the mount has CreateHostParent, it creates a missing directory.
func (g *Guarded) resolveSource(m sandbox.Mount) (string, fs.FileInfo, error) {
	dir, rel, err := g.policy.openRoot(m.Source, g.owner.Actor)
	if err != nil {
		return "", nil, g.refusedMount(m, err)
	}
	defer dir.Close()
	info, err := dir.Lstat(rel)
	if errors.Is(err, fs.ErrNotExist) && m.CreateHostParent {
		if err = dir.Mkdir(rel, 0o755); err == nil && g.gate.KnownRootMode() == RootIsolated {
			// Let root inside write here, which maps to a user without other rights to the directory.
			err = dir.Chmod(rel, 0o777)
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

// withSource calls do with the allowed root that contains source, and with the path of source below it. The root is opened with
// the owner's rights, and follows no symbolic links below it.
func (g *Guarded) withSource(source string, do func(root *fsutil.Dir, rel string) error) error {
	dir, rel, err := g.policy.openRoot(source, g.owner.Actor)
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir, rel)
}
