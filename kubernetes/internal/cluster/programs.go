package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// CacheVar is the environment variable with the cache directory for the built programs. The default is hinit-kubernetes in the
// user's cache directory.
const CacheVar = "HINIT_KUBERNETES_CACHE"

// kubernetesVersion is the Kubernetes version of the cluster, the same as in programs/kube/go.mod.
const kubernetesVersion = "v1.37.2"

// module is a Go module below programs/, and the programs that are built from it.
type module struct {
	dir      string
	packages []string
	flags    []string
	cLibrary string // C library that the module links with; "" if it needs none.
	optional bool   // A short build skips the module, and tests that need its programs are skipped.
}

var allModules = []module{
	{dir: "programs/pause", packages: []string{"."}},
	{dir: "programs/etcd", packages: []string{"."}},
	{
		dir:      "programs/containerd",
		packages: []string{"github.com/containerd/containerd/v2/cmd/containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/ctr"},
		flags:    []string{"-tags=no_btrfs no_devmapper no_zfs", "-ldflags=-s -w"},
	},
	{
		dir: "programs/kube",
		packages: []string{
			"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler",
			"k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/cmd/kubectl",
		},
		flags: []string{
			"-gcflags=k8s.io/kubernetes/...=-l -dwarf=false", // These flags make the build a third faster.
			"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=" + kubernetesVersion +
				" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37",
		},
	},
	{dir: "programs/runc", packages: []string{"github.com/opencontainers/runc"}, flags: []string{"-tags=seccomp", "-ldflags=-s -w"}, cLibrary: "libseccomp", optional: true},
	{dir: "programs/gvisor", packages: []string{"gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor/shim"}, flags: []string{"-ldflags=-s -w"}, optional: true},
	{dir: "programs/kube-router", packages: []string{"github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}, flags: []string{"-ldflags=-s -w"}, optional: true},
}

func (m module) programNames() (names []string) {
	for _, p := range m.packages {
		names = append(names, path.Base(path.Join(m.dir, p)))
	}
	return names
}

func (m module) isBuilt(bin string) bool {
	return !slices.ContainsFunc(m.programNames(), func(name string) bool { return !fileExists(filepath.Join(bin, name)) })
}

// canCompile reports whether this machine has the C compiler and the C library that the module needs.
func (m module) canCompile() bool {
	return m.cLibrary == "" || exec.Command("pkg-config", "--exists", m.cLibrary).Run() == nil && exec.Command("gcc", "--version").Run() == nil
}

// CacheDir returns the cache directory, see [CacheVar].
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheVar); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "hinit-kubernetes"), err
}

// programsDir returns the directory below cache for the programs of the module at root. Its name contains a hash of the sources
// and of the Go version, so that the programs always fit the sources.
func programsDir(cache, root string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), allModules)
	sources, err := filepath.Glob(filepath.Join(root, "internal/cluster/programs/*/*"))
	if err != nil {
		return "", err
	}
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", filepath.Base(name), len(text), text)
	}
	return filepath.Join(cache, "bin-"+hex.EncodeToString(h.Sum(nil))[:12]), nil
}

// directories holds the directories that a build and a run need: the cache, the root of the module under test, and the
// programs.
type directories struct {
	cache, root, bin string
}

func findDirectories() (directories, error) {
	cache, err := CacheDir()
	if err != nil {
		return directories{}, err
	}
	root, err := moduleRoot()
	if err != nil {
		return directories{}, err
	}
	bin, err := programsDir(cache, root)
	return directories{cache, root, bin}, err
}

// isBuilt reports whether the cache contains all programs, except for the optional ones.
func (p directories) isBuilt() bool {
	return !slices.ContainsFunc(allModules, func(m module) bool { return !m.optional && !m.isBuilt(p.bin) })
}

// Build builds the programs that are not in the cache yet, and returns their directory. A short build leaves out the optional
// programs and the definitions of other projects, which only a few tests need. Without Go's build cache, a build takes
// minutes.
func Build(out io.Writer, short bool) (bin string, err error) {
	p, err := findDirectories()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(p.bin, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(filepath.Join(p.cache, "build-lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if !short {
		if err := fetchDefinitions(p.cache); err != nil {
			return "", err
		}
	}
	for _, m := range allModules {
		if m.isBuilt(p.bin) || m.optional && (short || !m.canCompile()) {
			continue
		}
		if err := p.build(m, out); err != nil {
			return "", fmt.Errorf("cannot build %s: %w", m.dir, err)
		}
	}
	return p.bin, p.removeOldPrograms()
}

// build builds the programs of a module in another directory and then moves them, so that an interrupted build leaves no
// partial program.
func (p directories) build(m module, out io.Writer) error {
	fmt.Fprintln(out, "building", m.dir, "for the cluster of the tests; the first time takes minutes")
	unfinished := p.bin + ".part"
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return err
	}
	words := slices.Concat([]string{"-n", "19", "go", "build", "-trimpath", "-buildvcs=false", "-o", unfinished + "/"}, m.flags, m.packages)
	cmd := exec.Command("nice", words...)
	cmd.Dir = filepath.Join(p.root, "internal/cluster", m.dir)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED="+map[bool]string{true: "0", false: "1"}[m.cLibrary == ""])
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return err
	}
	for _, name := range m.programNames() {
		if err := os.Rename(filepath.Join(unfinished, name), filepath.Join(p.bin, name)); err != nil {
			return err
		}
	}
	return os.Remove(unfinished)
}

// removeOldPrograms removes programs that were built from other versions of the sources, if no build has used them for a day.
func (p directories) removeOldPrograms() error {
	now := time.Now()
	if err := os.Chtimes(p.bin, now, now); err != nil {
		return err
	}
	others, err := filepath.Glob(filepath.Join(p.cache, "bin-*"))
	for _, other := range others {
		if info, err := os.Stat(other); err == nil && now.Sub(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(other) // ignore the error, which only wastes space
		}
	}
	return err
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no go.mod above the working directory")
}
