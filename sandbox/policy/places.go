package policy

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"

	"hinit/sandbox"
)

// PathTranslator translates between paths of this process and paths on the engine's machine. They differ if this process itself
// runs in a container and uses the engine of the host. The engine looks for the source of a mount on its own machine.
type PathTranslator struct {
	self   string // the id of this process's container, or "" outside of a container
	mounts []sandbox.Mount
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
	slices.SortFunc(p.mounts, func(a, b sandbox.Mount) int { return len(b.Target) - len(a.Target) }) // the innermost mount first
	return p, nil
}

// ownContainer returns the id of the container of this process, or "" outside of a container. The engine mounts files such as
// /etc/hostname into each container, and their source path contains the id.
func ownContainer(mountinfo string) string {
	text, _ := os.ReadFile(mountinfo) // without /proc, this process is in no container of an engine
	// A line of proc_pid_mountinfo(5) has the root of the mount before the mount point.
	if id := regexp.MustCompile(`(?m)^\S+ \S+ \S+ (?:\S*/)?([0-9a-f]{64})(?:/\S*)? /etc/hostname `).FindSubmatch(text); id != nil {
		return string(id[1])
	}
	return ""
}

// ToEngine translates a path of this process to a path on the engine's machine. The result ok is false if the engine's machine
// does not have the file.
func (p PathTranslator) ToEngine(inside string) (outside string, ok bool) {
	return p.translate(inside, func(m sandbox.Mount) (from, to string) { return m.Target, m.Source })
}

// FromEngine translates a path on the engine's machine to a path of this process.
func (p PathTranslator) FromEngine(outside string) (inside string, ok bool) {
	return p.translate(outside, func(m sandbox.Mount) (from, to string) { return m.Source, m.Target })
}

func (p PathTranslator) translate(path string, ends func(sandbox.Mount) (from, to string)) (string, bool) {
	if p.self == "" {
		return path, true
	}
	for _, m := range p.mounts {
		from, to := ends(m)
		if rest, in := cutDir(path, from); in {
			return filepath.Join(to, rest), true
		}
	}
	return "", false
}

// Within reports whether the path is read-only for this process (readOnly), and whether something else is mounted below it
// (covered). A covered path must not be mounted in another container. There, the covering mount would be missing, and the
// files that it hides would be visible.
func (p PathTranslator) Within(inside string) (readOnly, covered bool) {
	found := false
	for _, m := range p.mounts {
		rest, below := cutDir(m.Target, inside)
		covered = covered || below && rest != ""
		if _, in := cutDir(inside, m.Target); in && !found {
			found, readOnly = true, m.ReadOnly
		}
	}
	return readOnly, covered
}

// cutDir returns the part of a path that follows the directory dir, or "" for dir itself. ok is false if the path is not in dir.
func cutDir(path, dir string) (rest string, ok bool) {
	if path == dir {
		return "", true
	}
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// TranslatingEngine is an engine for a process that may itself run in a container. It replaces the source of each bind mount by
// the path on the engine's machine. A source that can't be translated is left unchanged.
type TranslatingEngine struct{ sandbox.Engine }

// Create implements sandbox.Engine.
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
