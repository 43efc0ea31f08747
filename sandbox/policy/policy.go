// Package policy limits what a caller's sandboxes may have, checks their mounts, and isolates callers from each other.
//
// [Guard] returns an engine for one caller. It creates only what the [Policy] allows, doesn't follow symbolic links out of
// the allowed roots, and sees only containers with the caller's labels. All other code of the service uses this engine
// instead of the real one, so no code can forget a check.
//
// The package owns a goroutine only while it waits for the gate of a container.
package policy

import (
	"errors"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
	"hinit/sandbox"
	"hinit/sandbox/gate"
)

// LabelOwner is a label of each container, with the user id of the container's owner. Only the guard sets it, so a caller
// can't pretend to be another user.
const LabelOwner = "hinit-owner"

// Policy holds the limits for sandboxes that the operator sets. The zero value allows no image and no mount.
type Policy struct {
	Images        []string // Patterns as in path.Match. A pattern without a tag allows every tag.
	Roots         []string // directories below which the source of a mount may be
	Networks      []string // allowed networks, besides none and the engine's default
	Runtimes      []string // allowed runtimes, besides the engine's default
	Memory        int64    // maximum memory for one container in bytes; 0: no limit
	CPUs          float64  // maximum number of processors for one container; 0: no limit
	MaxContainers int      // maximum number of containers for one caller; 0: no limit
	PrivateRoot   bool     // Whether processes may be root inside but share no file with their caller, see [RootPrivate].
}

// RefusedError means that the policy forbids a request. The field What names the forbidden part. Advice is a hint for the caller,
// or empty.
type RefusedError struct{ What, Advice string }

// Error implements error.
func (e *RefusedError) Error() string {
	text := "cannot make the sandbox: " + e.What + " is not allowed"
	if e.Advice != "" {
		text += "; " + e.Advice
	}
	return text
}

// Unwrap makes errors.Is(err, sandbox.ErrRefused) true.
func (e *RefusedError) Unwrap() error { return sandbox.ErrRefused }

// maxPids limits the number of processes in a container. It is also the default.
const maxPids = 256

// Check returns an error if a Spec asks for more than the policy allows, and adds missing protections to the Spec. It does
// not check bind mounts: [Guarded] does, because they depend on the file system.
func (p Policy) Check(s *sandbox.Spec) error {
	if what, _ := s.FindEscape(); what != "" {
		return &RefusedError{what, ""}
	}
	if err := p.checkImage(s.Image); err != nil {
		return err
	}
	allowed := func(value string, values ...string) bool { return value == "" || slices.Contains(values, value) }
	for _, rule := range []struct {
		kept       bool
		what, next string
	}{
		{s.PIDMode+s.UTSMode+s.UserNS == "" && allowed(s.IPCMode, "private", "none") && allowed(s.CgroupNS, "private"), "a namespace of the host or of another container", ""},
		{allowed(s.Network, "none", "default") || allowed(s.Network, p.Networks...), "the network " + strconv.Quote(s.Network), "HINIT_SANDBOX_NETWORKS lists those that are"},
		{allowed(s.Runtime, p.Runtimes...), "the runtime " + strconv.Quote(s.Runtime), "HINIT_SANDBOX_RUNTIMES lists those that are"},
		{len(s.Ports) == 0, "the published port " + strings.Join(s.Ports, " "), ""},
		{allowed(s.Restart, "no"), "a restart policy", ""},
		{len(s.Groups) == 0, "the group " + strings.Join(s.Groups, " "), ""},
		{len(s.Hosts)+len(s.DNS) == 0, "a host or name server of the caller's choice", ""},
		{s.CPUs >= 0 && s.Memory >= 0 && s.ShmSize >= 0, "a negative limit", ""}, // These conditions are false for NaN.
		{p.Memory == 0 || s.ShmSize <= p.Memory, "a --shm-size of " + strconv.FormatInt(s.ShmSize, 10) + " bytes", "the most is HINIT_SANDBOX_MEMORY, " + strconv.FormatInt(p.Memory>>20, 10) + "m"},
		{!isIDPrefix(s.Name) && !strings.Contains(s.Name, replacedContainerInfix), "the name " + strconv.Quote(s.Name), "the engine would take it for the id of another container"},
		{s.Dir == "" || path.IsAbs(s.Dir) && !slices.Contains(kernelDirs, topDir(s.Dir)), "the working directory " + s.Dir, "give an absolute path, not in /proc, /sys and /dev"},
	} {
		if !rule.kept {
			return &RefusedError{rule.what, rule.next}
		}
	}
	if name, has := lo.FindKeyBy(s.Ulimits, func(name, _ string) bool { return !slices.Contains(allowedUlimits, name) }); has {
		return &RefusedError{"the limit " + strconv.Quote(name), "those that are: " + strings.Join(allowedUlimits, ", ")}
	}
	if name, has := lo.FindKeyBy(s.Storage, func(name, _ string) bool { return name != "size" }); has {
		return &RefusedError{"the storage option " + strconv.Quote(name), ""}
	}
	// Refuse labels that proxies and schedulers on the engine obey.
	if name, has := lo.FindKeyBy(s.Labels, func(name, _ string) bool {
		return !strings.HasPrefix(name, "hermes-") && name != sandbox.LabelVolume && name != sandbox.LabelClient
	}); has {
		return &RefusedError{"the label " + strconv.Quote(name), "only those that begin with hermes- are"}
	}
	for _, m := range s.Mounts {
		switch top := topDir(m.Target); {
		case m.Type == "tmpfs" && !regexp.MustCompile(tmpfsOptions).MatchString(m.Options):
			return &RefusedError{"a tmpfs with the options " + strconv.Quote(m.Options), "those that are: rw, ro, exec, noexec, nosuid, nodev, size (as 512m, below 20g), mode, uid, gid, nr_inodes"}
		case top == "/", top == "/sbin", slices.Contains(kernelDirs, top), strings.HasPrefix(top, strings.TrimSuffix(gate.DirPrefix, "-")):
			// Refuse a mount that hides the gate program, or a mount that the engine makes itself.
			return &RefusedError{"a mount at " + m.Target, ""}
		case m.Type == "volume":
			return &RefusedError{"the volume " + strconv.Quote(m.Source+":"+m.Target), "mount a directory below " + strings.Join(p.Roots, " or ")}
		}
	}
	p.harden(s)
	return nil
}

// harden adds missing protections to a Spec and lowers limits that are too high. A limit that is too high is no error,
// because the agent's default may be too high.
func (p Policy) harden(s *sandbox.Spec) {
	if !slices.Contains(s.CapDrop, "ALL") {
		s.CapDrop = append(s.CapDrop, "ALL")
	}
	s.SecurityOpt = []string{"no-new-privileges"}
	if s.PidsLimit <= 0 || s.PidsLimit > maxPids {
		s.PidsLimit = maxPids
	}
	if p.Memory > 0 && (s.Memory == 0 || s.Memory > p.Memory) {
		s.Memory = p.Memory
	}
	if p.CPUs > 0 && (s.CPUs < minCPUs || s.CPUs > p.CPUs) {
		s.CPUs = p.CPUs
	}
}

// minCPUs is the smallest CPU limit that an engine can set. The engine would ignore a smaller limit.
const minCPUs = 0.01

// allowedUlimits are the resource limits that a caller may set. With another one, a process could get more than the host allows.
var allowedUlimits = []string{"core", "cpu", "data", "fsize", "nofile", "nproc", "stack"}

// tmpfsOptions is a regular expression for the options that a caller's tmpfs may have. It excludes remount, which mounts
// nothing new, but changes the mount that is already at the target and the file system of the machine behind it. It also
// excludes a size in percent, which would be a part of the machine's memory.
const tmpfsOptions = `^((rw|ro|exec|noexec|nosuid|nodev|size=1?(\d{1,10}|\d{1,7}[kK]|\d{1,4}[mM]|\d?[gG])|(mode|uid|gid|nr_inodes)=\w+)(,|$))*$`

// isIDPrefix reports whether an engine would take a name for the beginning of a container's id, and so find another container.
func isIDPrefix(name string) bool {
	return len(name) >= 12 && len(name) <= 64 && strings.Trim(name, "0123456789abcdef") == ""
}

// topDir returns the first directory of an absolute path, such as /usr. For "/" it returns "/".
func topDir(p string) string {
	first, _, _ := strings.Cut(path.Clean("/" + p)[1:], "/")
	return "/" + first
}

// kernelDirs are directories in which the kernel shows its own data. A sandbox may mount nothing there.
var kernelDirs = []string{"/proc", "/sys", "/dev"}

func (p Policy) checkImage(ref string) error {
	if p.AllowsImage(ref) {
		return nil
	}
	return &RefusedError{"the image " + strconv.Quote(ref), "HINIT_SANDBOX_IMAGES lists those that are"}
}

// AllowsImage reports whether a pattern in Images matches an image reference. A digest needs a pattern with an @. An image id
// needs a pattern that consists of this id.
func (p Policy) AllowsImage(ref string) bool {
	// The reference may be an id, because an engine also finds an image by the first digits of its id.
	if strings.Trim(strings.TrimPrefix(ref, "sha256:"), "0123456789abcdef") == "" {
		return slices.Contains(p.Images, ref)
	}
	name := ref
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		name = ref[:i]
	}
	return slices.ContainsFunc(p.Images, func(pattern string) bool {
		tagged := strings.LastIndexByte(pattern, ':') > strings.LastIndexByte(pattern, '/')
		against := lo.Ternary(!tagged && !strings.Contains(pattern, "@"), name, ref)
		ok, err := path.Match(pattern, against)
		return err == nil && ok && strings.Contains(ref, "@") == strings.Contains(pattern, "@")
	})
}

// openRoot opens the allowed root that contains source, with the rights of the actor as. rel is the path of source below the
// root.
func (p Policy) openRoot(source string, as *fsutil.Actor) (dir *fsutil.Dir, rel string, err error) {
	if !filepath.IsAbs(source) || slices.Contains(strings.Split(source, "/"), "..") {
		return nil, "", errors.New("it must be an absolute path without dots that lead upwards")
	}
	clean := filepath.Clean(source)
	for _, root := range p.Roots {
		if rest, ok := strings.CutPrefix(clean, filepath.Clean(root)+"/"); ok {
			dir, err = fsutil.OpenDir(root, as)
			return dir, rest, err
		}
	}
	return nil, "", errors.New("it is below no allowed directory")
}
