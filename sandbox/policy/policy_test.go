package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/sandbox"
	"hinit/sandbox/gate"
)

// fakeEngine records its calls, and panics at unexpected ones.
type fakeEngine struct {
	sandbox.FullEngine
	containers map[string]sandbox.Container
	created    []sandbox.Spec
	calls      []string
	volumes    []sandbox.Volume
	info       sandbox.Info
}

func (e *fakeEngine) Image(context.Context, string) (sandbox.Image, error) {
	return sandbox.Image{Entrypoint: []string{"/entry"}, Cmd: []string{"image's"}, Dir: "/"}, nil
}

func (e *fakeEngine) Create(_ context.Context, s sandbox.Spec) (string, error) {
	e.created = append(e.created, s)
	return strings.Repeat("c", 64), nil
}

func (e *fakeEngine) List(_ context.Context, labels map[string]string) (found []sandbox.Container, _ error) {
next:
	for _, c := range e.containers {
		for name, value := range labels {
			if got, has := c.Labels[name]; !has || value != "" && got != value {
				continue next
			}
		}
		found = append(found, c)
	}
	return found, nil
}

func (e *fakeEngine) Inspect(_ context.Context, id string) (sandbox.Container, error) {
	if c, ok := e.containers[id]; ok {
		return c, nil
	}
	return sandbox.Container{}, sandbox.ErrGone
}

func (e *fakeEngine) Remove(_ context.Context, id string) error {
	e.calls = append(e.calls, "remove "+id)
	return nil
}

func (e *fakeEngine) Exec(_ context.Context, id string, _ sandbox.ExecSpec) (sandbox.Attachment, error) {
	e.calls = append(e.calls, "exec "+id)
	return nil, nil
}

// newReadyGate returns a Gate whose volume already has the program.
func newReadyGate() *Gate { return newGateWithRoot(RootCaller) }

func newGateWithRoot(root RootMode) *Gate {
	g := &Gate{}
	g.volume.Store(new("gates"))
	g.root.Store(&root)
	return g
}

func (e *fakeEngine) Info(context.Context) (sandbox.Info, error) { return e.info, nil }

func (e *fakeEngine) Volumes(context.Context, string, map[string]string) ([]sandbox.Volume, error) {
	return []sandbox.Volume{{Name: "gates"}}, nil
}

func (e *fakeEngine) CreateVolume(_ context.Context, name string, labels map[string]string) error {
	e.volumes = append(e.volumes, sandbox.Volume{Name: name, Labels: labels})
	return nil
}

// validSpec returns an allowed Spec with the agent's usual settings.
func validSpec(root string) sandbox.Spec {
	return sandbox.Spec{
		Name: "hermes-00000000", Image: "allowed:1", Cmd: []string{"sleep", "infinity"}, Init: true, Dir: "/root",
		Labels:  map[string]string{sandbox.LabelAgent: "1", sandbox.LabelTask: "default", sandbox.LabelProfile: "coder"},
		CapDrop: []string{"ALL"}, CapAdd: []string{"DAC_OVERRIDE", "CHOWN", "FOWNER", "SETUID", "SETGID"}, SecurityOpt: []string{"no-new-privileges"},
		PidsLimit: 256, CPUs: 1, Memory: 1 << 30,
		Mounts: []sandbox.Mount{
			{Type: "tmpfs", Target: "/tmp"}, {Type: "bind", Source: root + "/sandboxes/docker/default/home", Target: "/root", CreateHostParent: true},
		},
	}
}

// TestEscapes tries to escape through each field of a Spec. No such Spec may reach the engine.
func TestEscapes(t *testing.T) {
	root := t.TempDir()
	outside := t.TempDir()
	for name, to := range map[string]string{"link": outside, "up": "..", "abs": "/", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mkfifo(t, filepath.Join(root, "fifo"))
	listenUnix(t, filepath.Join(root, "docker.sock"))
	bind := func(source, target string) func(*sandbox.Spec) {
		return func(s *sandbox.Spec) {
			s.Mounts = append(s.Mounts, sandbox.Mount{Type: "bind", Source: source, Target: target, CreateHostParent: true})
		}
	}
	for name, change := range map[string]func(*sandbox.Spec){
		"privileged":                 func(s *sandbox.Spec) { s.Privileged = true },
		"a device":                   func(s *sandbox.Spec) { s.Devices = []string{"/dev/mem"} },
		"the host's processes":       func(s *sandbox.Spec) { s.PIDMode = "host" },
		"another's processes":        func(s *sandbox.Spec) { s.PIDMode = "container:hinit" },
		"the host's IPC":             func(s *sandbox.Spec) { s.IPCMode = "host" },
		"another's IPC":              func(s *sandbox.Spec) { s.IPCMode = "container:hinit" },
		"the host's name":            func(s *sandbox.Spec) { s.UTSMode = "host" },
		"the host's users":           func(s *sandbox.Spec) { s.UserNS = "host" },
		"the host's cgroups":         func(s *sandbox.Spec) { s.CgroupNS = "host" },
		"the host's network":         func(s *sandbox.Spec) { s.Network = "host" },
		"another's network":          func(s *sandbox.Spec) { s.Network = "container:hinit" },
		"a network of somebody else": func(s *sandbox.Spec) { s.Network = "database" },
		"SYS_ADMIN":                  func(s *sandbox.Spec) { s.CapAdd = append(s.CapAdd, "SYS_ADMIN") },
		"all capabilities":           func(s *sandbox.Spec) { s.CapAdd = []string{"ALL"} },
		"cap_sys_ptrace":             func(s *sandbox.Spec) { s.CapAdd = []string{"cap_sys_ptrace"} },
		"seccomp off":                func(s *sandbox.Spec) { s.SecurityOpt = []string{"seccomp=unconfined"} },
		"apparmor off":               func(s *sandbox.Spec) { s.SecurityOpt = []string{"apparmor:unconfined"} },
		"new privileges":             func(s *sandbox.Spec) { s.SecurityOpt = []string{"no-new-privileges=false"} },
		"proc unmasked":              func(s *sandbox.Spec) { s.SecurityOpt = []string{"systempaths=unconfined"} },
		"SELinux off":                func(s *sandbox.Spec) { s.SecurityOpt = []string{"label=disable"} },
		"another image":              func(s *sandbox.Spec) { s.Image = "evil" },
		"another registry":           func(s *sandbox.Spec) { s.Image = "evil.example/allowed:1" },
		"another tag":                func(s *sandbox.Spec) { s.Image = "allowed:2" },
		"an image by its digest":     func(s *sandbox.Spec) { s.Image = "allowed@sha256:" + strings.Repeat("0", 64) },
		"an image by its id":         func(s *sandbox.Spec) { s.Image = "sha256:" + strings.Repeat("0", 64) },
		"an image that is a flag":    func(s *sandbox.Spec) { s.Image = "--privileged" },
		"another runtime":            func(s *sandbox.Spec) { s.Runtime = "mine" },
		"a port of the host":         func(s *sandbox.Spec) { s.Ports = []string{"22:22"} },
		"a restart policy":           func(s *sandbox.Spec) { s.Restart = "always" },
		"a group of the host":        func(s *sandbox.Spec) { s.Groups = []string{"docker"} },
		"a host of the caller's":     func(s *sandbox.Spec) { s.Hosts = []string{"api.example:10.0.0.1"} },
		"no limit of memory":         func(s *sandbox.Spec) { s.Memory = -1 },
		"a storage option":           func(s *sandbox.Spec) { s.Storage = map[string]string{"overlay2.override": "1"} },
		"another's owner label":      func(s *sandbox.Spec) { s.Labels[LabelOwner] = "0" },
		"another profile's label":    func(s *sandbox.Spec) { s.Labels[sandbox.LabelProfile] = "writer" },
		"a route of the proxy":       func(s *sandbox.Spec) { s.Labels["traefik.http.routers.x.rule"] = "Host(`admin.example`)" },
		"labels without end":         func(s *sandbox.Spec) { s.Labels["hermes-x"] = strings.Repeat("x", maxSpecBytes) },
		"a volume of somebody else": func(s *sandbox.Spec) {
			s.Mounts = append(s.Mounts, sandbox.Mount{Type: "volume", Source: "database", Target: "/d"})
		},
		"the gate's volume": func(s *sandbox.Spec) {
			s.Mounts = append(s.Mounts, sandbox.Mount{Type: "volume", Source: "gates", Target: "/d"})
		},
		"over the gate":          bind(root+"/x", gate.DirPrefix+"x"),
		"in the gate":            bind(root+"/x", gate.DirPrefix+"x/gate"),
		"over everything":        bind(root+"/x", "/"),
		"over proc":              bind(root+"/x", "/proc/sys"),
		"over the engine's init": bind(root+"/x", "/sbin"),
		"a tmpfs over the gate": func(s *sandbox.Spec) {
			s.Mounts = append(s.Mounts, sandbox.Mount{Type: "tmpfs", Target: gate.DirPrefix + "x"})
		},
		"a tmpfs that makes a mount writable": func(s *sandbox.Spec) {
			s.Mounts = append(s.Mounts, sandbox.Mount{Type: "tmpfs", Target: "/root/.", Options: "remount,rw"})
		},
		"a tmpfs that limits the machine's file system": func(s *sandbox.Spec) {
			s.Mounts = append(s.Mounts, sandbox.Mount{Type: "tmpfs", Target: "/root/link", Options: "size=4k,remount"})
		},
		"shared memory beyond the limit": func(s *sandbox.Spec) { s.ShmSize = 2<<30 + 1 },
		"a tmpfs of all memory": func(s *sandbox.Spec) {
			s.Mounts[0] = sandbox.Mount{Type: "tmpfs", Target: "/big", Options: "size=100%"}
		},
		"a tmpfs of a terabyte": func(s *sandbox.Spec) {
			s.Mounts[0] = sandbox.Mount{Type: "tmpfs", Target: "/big", Options: "size=1000g"}
		},
		"a tmpfs of many bytes": func(s *sandbox.Spec) {
			s.Mounts[0] = sandbox.Mount{Type: "tmpfs", Target: "/big", Options: "size=99999999999"}
		},
		"less than an engine can limit": func(s *sandbox.Spec) { s.CPUs = math.NaN() },
		"a real-time priority":          func(s *sandbox.Spec) { s.Ulimits = map[string]string{"rtprio": "99"} },
		"a descriptor of runc's":        func(s *sandbox.Spec) { s.Dir = "//proc/self/fd/7" },
		"a relative directory":          func(s *sandbox.Spec) { s.Dir = "work" },
		"another one's id as a name":    func(s *sandbox.Spec) { s.Name = "bbf3fd2097e8" },
		"the name of one made again":    func(s *sandbox.Spec) { s.Name = "x" + replacedContainerInfix + "y" },
		"the root directory":            bind("/", "/host"),
		"a directory of the system":     bind("/etc", "/host"),
		"the engine's socket":           bind("/var/run/docker.sock", "/s"),
		"the socket by a root":          bind(root+"/docker.sock", "/s"),
		"dots":                          bind(root+"/../../etc", "/host"),
		"dots to the root itself":       bind(root+"/x/..", "/host"),
		"the whole root":                bind(root, "/host"),
		"a name that begins alike":      bind(root+"-other", "/host"),
		"a relative path":               bind("etc", "/host"),
		"a link outwards":               bind(root+"/link", "/host"),
		"below a link outwards":         bind(root+"/link/x", "/host"),
		"a link upwards":                bind(root+"/up", "/host"),
		"a link to the root":            bind(root+"/abs/etc", "/host"),
		"a link to itself":              bind(root+"/loop", "/host"),
		"a file taken as directory":     bind(root+"/file/x", "/host"),
		"a pipe":                        bind(root+"/fifo", "/host"),
	} {
		t.Run(name, func(t *testing.T) {
			e := &fakeEngine{}
			p := Policy{Images: []string{"allowed:1"}, Roots: []string{root}, Memory: 2 << 30, CPUs: 2}
			spec := validSpec(root)
			change(&spec)
			_, err := Guard(e, p, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{}, newReadyGate()).Create(t.Context(), spec)
			if !errors.Is(err, sandbox.ErrRefused) {
				t.Errorf("error %v", err)
			}
			if len(e.created) > 0 {
				t.Errorf("the engine was asked for %+v", e.created)
			}
		})
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) > 0 {
		t.Errorf("outside of the root there is %v now (%v)", entries, err)
	}
}

func TestGuardMakesItHard(t *testing.T) {
	root := t.TempDir()
	e := &fakeEngine{}
	p := Policy{Images: []string{"allowed"}, Roots: []string{root}, Memory: 2 << 30, CPUs: 2}
	g := Guard(e, p, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{}, newReadyGate())
	if _, err := g.Create(t.Context(), validSpec(root)); err != nil {
		t.Fatal(err)
	}
	for _, cpus := range []float64{1000, 1e-10} { // Engines ignore so small a limit.
		if _, err := g.Create(t.Context(), sandbox.Spec{Image: "allowed:2", Memory: 1 << 50, CPUs: cpus}); err != nil {
			t.Fatal(err)
		}
	}
	if tiny := e.created[2]; tiny.CPUs != p.CPUs {
		t.Errorf("who asks for a tiny part of a processor has %v", tiny.CPUs)
	}
	full, bare := e.created[0], e.created[1]
	if got := strings.Join(append(full.Entrypoint, full.Cmd...), " "); !strings.HasPrefix(got, gate.DirPrefix) || !strings.HasSuffix(got, "/gate gate-init /root /entry sleep infinity") || full.Init {
		t.Errorf("it begins with %q", got)
	}
	for _, m := range full.Mounts {
		if m.Type == "bind" && m.CreateHostParent {
			t.Errorf("the engine would make %+v as root", m)
		}
		if strings.HasPrefix(m.Target, gate.DirPrefix) && (!m.ReadOnly || m.Type != "volume" || len(m.Target) < len(gate.DirPrefix)+20) {
			t.Errorf("the gate is on %+v", m)
		}
	}
	if info, err := os.Stat(root + "/sandboxes/docker/default/home"); err != nil || !info.IsDir() {
		t.Errorf("the source was not made: %v", err)
	}
	if bare.Memory != p.Memory || bare.CPUs != p.CPUs || bare.PidsLimit != maxPids || strings.Join(bare.CapDrop, " ") != "ALL" || strings.Join(bare.SecurityOpt, " ") != "no-new-privileges" {
		t.Errorf("who asks for nothing gets %+v", bare)
	}
	if bare.Labels[LabelOwner] != "1000" || bare.Labels[sandbox.LabelProfile] != "coder" || bare.Labels[sandbox.LabelAgent] != "1" || bare.Labels[sandbox.LabelVolume] != "here" {
		t.Errorf("its labels are %v", bare.Labels)
	}
	if got := strings.Join(bare.Entrypoint, " "); !strings.HasSuffix(got, "/gate gate / /entry") || bare.Dir != "/" {
		t.Errorf("without mounts it begins with %q in %q", got, bare.Dir)
	}
}

// TestAnEmptyEntryPointStoppedASandboxAtItsGate checks that docker run --entrypoint "" starts the
// command without the image's entry point.
func TestAnEmptyEntryPointStoppedASandboxAtItsGate(t *testing.T) {
	root := t.TempDir()
	e := &fakeEngine{}
	g := Guard(e, Policy{Images: []string{"allowed"}, Roots: []string{root}}, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{}, newReadyGate())
	spec := validSpec(root)
	spec.Entrypoint = []string{""}
	if _, err := g.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(append(e.created[0].Entrypoint, e.created[0].Cmd...), " "); !strings.HasSuffix(got, "/gate gate-init /root sleep infinity") {
		t.Errorf("it begins with %q", got)
	}
}

func newContainer(id, owner, profile string) sandbox.Container {
	return sandbox.Container{ID: id, State: sandbox.Running, Labels: map[string]string{sandbox.LabelAgent: "1", LabelOwner: owner, LabelRoot: string(RootCaller), sandbox.LabelProfile: profile, sandbox.LabelVolume: "here"}}
}

// TestOnlyItsOwn checks that a caller can't see containers of other owners.
func TestOnlyItsOwn(t *testing.T) {
	e := &fakeEngine{containers: map[string]sandbox.Container{
		"mine": newContainer("mine", "1000", "coder"), "profile": newContainer("profile", "1000", "writer"), "user": newContainer("user", "1001", "coder"),
		"plain": {ID: "plain", Labels: map[string]string{}}, "hinit": newContainer("hinit", "1000", "coder"), "old": {ID: "old", Labels: map[string]string{sandbox.LabelAgent: "1", sandbox.LabelProfile: "coder"}},
		"rooted": {ID: "rooted", Labels: map[string]string{sandbox.LabelAgent: "1", sandbox.LabelProfile: "coder", LabelOwner: "1000"}},
	}}
	// A container of another installation with the same user and profile.
	elsewhere := newContainer("elsewhere", "1000", "coder")
	elsewhere.Labels[sandbox.LabelVolume] = "elsewhere"
	again := newContainer("again", "1000", "coder")
	again.Name = "x" + replacedContainerInfix + "y"
	e.containers["elsewhere"], e.containers["again"] = elsewhere, again
	g := Guard(e, Policy{}, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{containerID: "hinit"}, newReadyGate())
	ctx := t.Context()
	for id := range e.containers {
		if id == "mine" {
			continue
		}
		_, inspect := g.Inspect(ctx, id)
		_, exec := g.Exec(ctx, id, sandbox.ExecSpec{})
		for doing, err := range map[string]error{
			"inspect": inspect, "exec": exec, "start": g.Start(ctx, id), "stop": g.Stop(ctx, id, 0), "unpause": g.Unpause(ctx, id),
			"logs": g.Logs(ctx, id, false, nil, nil),
		} {
			if !errors.Is(err, sandbox.ErrGone) {
				t.Errorf("%s of %s: %v", doing, id, err)
			}
		}
		if err := g.Remove(ctx, id); err != nil {
			t.Errorf("remove %s: %v: what is not there is no error", id, err)
		}
	}
	if len(e.calls) > 0 {
		t.Errorf("the engine was told to %v", e.calls)
	}
	for _, labels := range []map[string]string{nil, {LabelOwner: ""}, {sandbox.LabelAgent: "1"}} {
		found, err := g.List(ctx, labels)
		for _, c := range found {
			if c.ID != "mine" {
				t.Errorf("with %v it sees %s", labels, c.ID)
			}
		}
		if err != nil || len(found) == 0 {
			t.Errorf("with %v it sees %v (%v)", labels, found, err)
		}
	}
	for _, labels := range []map[string]string{{LabelOwner: "1001"}, {sandbox.LabelProfile: "writer"}} {
		if found, err := g.List(ctx, labels); err != nil || len(found) > 0 {
			t.Errorf("with %v it sees %v (%v)", labels, found, err)
		}
	}
	// A copy into a container must be refused: the engine would mount the container's mounts again by
	// name, and their owner could redirect them.
	if _, full := any(g).(sandbox.FullEngine); full || !errors.Is(g.CopyIn(ctx, "mine", "/", nil), sandbox.ErrRefused) {
		t.Error("the engine copies")
	}
	if _, err := g.Exec(ctx, "mine", sandbox.ExecSpec{}); err != nil || len(e.calls) != 1 {
		t.Errorf("its own: %v, %v", err, e.calls)
	}
}

func TestTooMany(t *testing.T) {
	e := &fakeEngine{containers: map[string]sandbox.Container{"a": newContainer("a", "1000", "coder"), "b": newContainer("b", "1000", "writer")}}
	g := Guard(e, Policy{Images: []string{"*"}, MaxContainers: 2}, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{}, newReadyGate())
	if _, err := g.Create(t.Context(), sandbox.Spec{Image: "x"}); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("error %v", err)
	}
}

// TestACallerThatAsksAtOnceGetsNoMoreThanItsContainers checks the container limit with concurrent
// requests.
func TestACallerThatAsksAtOnceGetsNoMoreThanItsContainers(t *testing.T) {
	const limit, requests = 3, 8
	e := &slowEngine{fakeEngine: fakeEngine{containers: map[string]sandbox.Container{}}}
	gate := newReadyGate()
	var asking sync.WaitGroup
	for n := range requests {
		g := Guard(e, Policy{Images: []string{"*"}, MaxContainers: limit}, Owner{UID: 1000, Profile: fmt.Sprint("p", n%2), Volume: "here"}, PathTranslator{}, gate)
		asking.Go(func() {
			if _, err := g.Create(t.Context(), sandbox.Spec{Image: "x"}); err != nil && !errors.Is(err, sandbox.ErrRefused) {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if n := len(e.containers); n != limit {
		t.Errorf("%d requests at once get %d containers, of at most %d", requests, n, limit)
	}
	waits, cancel := context.WithCancel(t.Context())
	release, err := gate.lockKey(t.Context(), "user 1000")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	cancel()
	g := Guard(e, Policy{Images: []string{"*"}, MaxContainers: limit + 1}, Owner{UID: 1000, Volume: "here"}, PathTranslator{}, gate)
	if _, err := g.Create(waits, sandbox.Spec{Image: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone waits for its turn: %v", err)
	}
}

// slowEngine lets other requests run while it creates a container.
type slowEngine struct {
	mu sync.Mutex
	fakeEngine
}

func (e *slowEngine) List(ctx context.Context, labels map[string]string) ([]sandbox.Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fakeEngine.List(ctx, labels)
}

func (e *slowEngine) Create(_ context.Context, s sandbox.Spec) (string, error) {
	for range 1000 {
		runtime.Gosched()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	id := fmt.Sprint(len(e.containers))
	e.containers[id] = sandbox.Container{ID: id, Labels: s.Labels}
	return id, nil
}

func TestAllowsImage(t *testing.T) {
	for _, c := range []struct {
		pattern, image string
		want           bool
	}{
		{"debian", "debian", true},
		{"debian", "debian:12", true},
		{"debian", "debian@sha256:0", false},
		{"debian:12", "debian", false},
		{"debian:1?", "debian:12", true},
		{"debian:*", "debian@sha256:0", false}, // With a digest, the engine ignores the tag.
		{"debian:*", "debian:12@sha256:0", false},
		{"my/*", "my/image:12@sha256:0", false},
		{"debian:*@sha256:0", "debian:12@sha256:0", true},
		{"a@*", "a@sha256:0", true},
		{"registry:5000/a", "registry:5000/a:1", true},
		{"registry:5000/a", "registry:5000/b", false},
		{"r/*", "r/x/y", false},
		{"r/*", "r/x:1", true},
		{"[", "[", false},
		{"a@sha256:0", "a@sha256:0", true},
		{"*", "sha256:0", false},
		{"*:*", "sha256:0", false},
		{"*", "0a1b", false},
		{"f*", "fed", false},
		{"fed", "fed", true},
		{"sha256:0", "sha256:0", true},
	} {
		if got := (Policy{Images: []string{c.pattern}}).AllowsImage(c.image); got != c.want {
			t.Errorf("%s for %s: %v", c.pattern, c.image, got)
		}
	}
}

func TestPlaces(t *testing.T) {
	p := PathTranslator{containerID: "x", mounts: []sandbox.Mount{{Source: "/var/lib/v/_data/sub", Target: "/opt/data/sub"}, {Source: "/var/lib/v/_data", Target: "/opt/data"}}}
	for inside, want := range map[string]string{"/opt/data": "/var/lib/v/_data", "/opt/data/a/b": "/var/lib/v/_data/a/b", "/opt/data/sub/x": "/var/lib/v/_data/sub/x", "/opt/database": "", "/etc": ""} {
		got, ok := p.ToEngine(inside)
		if got != want || ok != (want != "") {
			t.Errorf("%s is %q outside", inside, got)
		}
		if back, ok := p.FromEngine(got); want != "" && (!ok || back != inside) {
			t.Errorf("%s is %q inside", got, back)
		}
	}
	if got, ok := (PathTranslator{}).ToEngine("/x"); !ok || got != "/x" {
		t.Error("who is in no container has the paths of the engine")
	}
}

func TestOwnContainer(t *testing.T) {
	id := strings.Repeat("0a", 32)
	file := filepath.Join(t.TempDir(), "mountinfo")
	text := "1 2 8:1 / / rw - ext4 /dev/sda rw\n3 1 8:1 /var/lib/docker/containers/" + id + "/hostname /etc/hostname rw - ext4 /dev/sda rw\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ownContainer(file); got != id {
		t.Errorf("it is %q", got)
	}
	if got := ownContainer("/proc/self/nothing"); got != "" {
		t.Errorf("it is %q", got)
	}
}

// TestAMountOfTheContainersOwn checks that a sandbox can neither write to a read-only mount of
// hinit's container nor read files that another mount hides.
func TestAMountOfTheContainersOwn(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(root+"/ro/sub", 0o700), os.MkdirAll(root+"/above/secret", 0o700)); err != nil {
		t.Fatal(err)
	}
	places := PathTranslator{containerID: "me", mounts: []sandbox.Mount{
		{Source: "/host/secret", Target: root + "/above/secret"}, {Source: "/host/ro", Target: root + "/ro", ReadOnly: true}, {Source: "/host/data", Target: root},
	}}
	e := &fakeEngine{}
	g := Guard(e, Policy{Images: []string{"*"}, Roots: []string{root}}, Owner{UID: 1000, Profile: "coder", Volume: "here"}, places, newReadyGate())
	make := func(source string) error {
		_, err := g.Create(t.Context(), sandbox.Spec{Image: "x", Mounts: []sandbox.Mount{{Type: "bind", Source: source, Target: "/x"}}})
		return err
	}
	for _, source := range []string{root + "/ro", root + "/ro/sub"} {
		if err := make(source); err != nil {
			t.Fatal(err)
		}
		if at := slices.IndexFunc(e.created[len(e.created)-1].Mounts, func(m sandbox.Mount) bool { return m.Target == "/x" }); !e.created[len(e.created)-1].Mounts[at].ReadOnly {
			t.Errorf("%s can be written", source)
		}
	}
	if err := make(root + "/above"); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("a directory with a mount in it: %v", err)
	}
}

// TestWhatIsMadeAgain checks that a stopped container is replaced if it may have put a link on a
// mount's path.
func TestWhatIsMadeAgain(t *testing.T) {
	for target, want := range map[string]bool{"/root": true, "/workspace/": true, "/a/b": false, "/root/.hermes/x": false} {
		c := sandbox.Container{Mounts: []sandbox.Mount{{Type: "tmpfs", Target: "/x/y"}, {Type: "bind", Target: target}}}
		image := sandbox.Container{Started: time.Now(), Mounts: []sandbox.Mount{{Type: "bind", Target: "/data"}, {Type: "volume", Target: target}}}
		if mustRecreate(image) == want {
			t.Errorf("another start with a volume of the image's at %s: made again %v", target, !want)
		}
		if mustRecreate(c) {
			t.Errorf("the first start with %s makes it again", target)
		}
		c.Started = time.Now()
		if mustRecreate(c) == want {
			t.Errorf("another start with %s: made again %v", target, !want)
		}
	}
}

// TestTheAgentBecomesRootOfTheHost checks that requests for root with an agent's directory, or for
// a host group, give harmless containers in all root modes.
func TestTheAgentBecomesRootOfTheHost(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(root, "file"), nil, 0o600), os.Mkdir(filepath.Join(root, "skills"), 0o700)); err != nil {
		t.Fatal(err)
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	for _, user := range []string{"", "0", "root", "0:105", "10000:105", "postgres"} {
		spec := validSpec(root)
		spec.User = user
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Type: "bind", Source: root + "/skills", Target: "/root/.hermes/skills", ReadOnly: true})
		owner := Owner{UID: 1000, Profile: "coder", Volume: "here", Actor: fsutil.NewActor(fsutil.Identity{UID: uid, GID: gid})}
		p := Policy{Images: []string{"allowed:1"}, Roots: []string{root}}

		e := &fakeEngine{}
		if _, err := Guard(e, p, owner, PathTranslator{}, newReadyGate()).Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if made := e.created[0]; made.User != fmt.Sprintf("%d:%d", uid, gid) || len(made.CapAdd)+len(made.Groups) > 0 || !slices.Contains(made.SecurityOpt, "no-new-privileges") ||
			!slices.Contains(made.Env, "HOME=/root") || made.Labels[LabelRoot] != string(RootCaller) {
			t.Errorf("who asks for the user %q gets %+v", user, made)
		}

		e, p.PrivateRoot = &fakeEngine{}, true
		if _, err := Guard(e, p, owner, PathTranslator{}, newReadyGate()).Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		made := e.created[0]
		for _, m := range made.Mounts {
			if m.Type == "bind" {
				t.Errorf("it shares %+v", m)
			}
		}
		if len(e.volumes) != 1 || !strings.HasPrefix(e.volumes[0].Name, sandbox.VolumePrefix) || made.Labels[labelCopies] != `{"/root/.hermes/skills":"`+root+`/skills"}` {
			t.Errorf("volumes %+v, labels %v", e.volumes, made.Labels)
		}
	}
	spec := validSpec(root)
	spec.Mounts = append(spec.Mounts, sandbox.Mount{Type: "bind", Source: root + "/file", Target: "/root/file"})
	if _, err := Guard(&fakeEngine{}, Policy{Images: []string{"*"}, Roots: []string{root}, PrivateRoot: true}, Owner{UID: 1000, Profile: "coder", Volume: "here"}, PathTranslator{}, newReadyGate()).Create(t.Context(), spec); !errors.Is(err, sandbox.ErrRefused) {
		t.Errorf("a file that can be written: %v", err)
	}
}

// TestWhichRoot checks which uid maps contain all users, and which RootMode follows from an
// engine's mapping.
func TestWhichRoot(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{"         0          0 4294967295\n": true, "0 100000 65536\n": false, "0 1000 1\n1 100000 65536\n": false, "": false} {
		file := filepath.Join(dir, "uid_map")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := mapsAllUsers(file); got != want {
			t.Errorf("with the map %q: %v", text, got)
		}
	}
	if got := (Policy{}).RootModeOf(sandbox.Info{}); got != RootCaller {
		t.Errorf("an engine that maps no users: %v", got)
	}
	if got := (Policy{PrivateRoot: true}).RootModeOf(sandbox.Info{UserMapping: "rootless"}); got != RootPrivate {
		t.Errorf("with HINIT_SANDBOX_ROOT=private: %v", got)
	}
}

// TestRootInsideCouldNotWriteToItsWorkspace checks that root inside can write to its workspace on
// an engine that maps users.
func TestRootInsideCouldNotWriteToItsWorkspace(t *testing.T) {
	for root, want := range map[RootMode]os.FileMode{RootIsolated: 0o777, RootCaller: 0o755} {
		top := t.TempDir()
		there := filepath.Join(top, "there")
		if err := os.Mkdir(there, 0o700); err != nil {
			t.Fatal(err)
		}
		g := Guard(&fakeEngine{}, Policy{Roots: []string{top}}, Owner{Actor: fsutil.ProcessActor()}, PathTranslator{}, newGateWithRoot(root))
		for path, want := range map[string]os.FileMode{filepath.Join(top, "made", "workspace"): want, there: 0o700} {
			_, info, err := g.resolveSource(sandbox.Mount{Type: "bind", Source: path, Target: "/workspace", CreateHostParent: true})
			if err != nil || info.Mode().Perm() != want {
				t.Errorf("%s, %s: mode %v, %v", root, path, info.Mode(), err)
			}
		}
	}
}
