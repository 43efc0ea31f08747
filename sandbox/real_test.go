package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// testRun begins the profile labels of all containers that the real_* tests create.
var testRun = "hinit-sandbox-test-" + randomHex(4)

var testImageTag = testRun + ":image"

// cachedFile returns a file of a Debian package from a cache that all test runs share.
func cachedFile(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	path := filepath.Join(cache, "hinit", name+"-static-"+runtime.GOARCH)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if out, err := exec.Command("../docker/"+name, runtime.GOARCH, temp).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, os.Rename(temp, path)
}

// testImageFiles holds the helper and the directory of a test image with bash and busybox.
type testImageFiles struct{ dir, helper string }

var buildTestImage = sync.OnceValues(func() (b testImageFiles, err error) {
	if b.dir, err = os.MkdirTemp("", "hinit-sandbox-"); err != nil {
		return b, err
	}
	b.helper = filepath.Join(b.dir, helperName)
	return b, testkit.Build(b.dir, "hinit-sandbox-helper")
})

var buildImage = sync.OnceValue(func() error { return loadImageInto("") })

// loadImageInto builds the test image with the engine at an address; "" is the default engine.
func loadImageInto(host string) error {
	dir, err := os.MkdirTemp("", "hinit-sandbox-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"bash", "busybox"} {
		path, err := cachedFile(name)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o755)
		}
		if err != nil {
			return err
		}
	}
	text := "FROM scratch\nLABEL " + testRun + "=1\nENV PATH=/bin\nCOPY bash busybox /bin/\nRUN [\"/bin/busybox\", \"sh\", \"-c\", \"busybox --install -s /bin && " +
		"mkdir -p /tmp /root /etc && echo 'root:x:0:0::/root:/bin/bash' > /etc/passwd && echo 'user:x:1000:1000::/tmp:/bin/bash' >> /etc/passwd\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("docker", "build", "-q", "--network=none", "-t", testImageTag, dir)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	if host != "" {
		cmd.Env = append(cmd.Env, "DOCKER_HOST="+host)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the test image: %w: %s", err, out)
	}
	return nil
}

func requireEngine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a container engine")
	}
	e, err := Docker("")
	if err == nil {
		_, err = e.Info(t.Context())
		e.Close()
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Parallel() // These tests mostly wait for the engine, so run them in parallel.
	if err := buildImage(); err != nil {
		t.Fatal(err)
	}
	if _, err := buildTestImage(); err != nil {
		t.Fatal(err)
	}
}

func removeTestContainers() {
	ids, _ := exec.Command("docker", "ps", "-aq", "--filter", "label="+testRun).Output()
	for id := range strings.FieldsSeq(string(ids)) {
		_ = exec.Command("docker", "rm", "-fv", id).Run()
	}
	_ = exec.Command("docker", "rmi", "-f", testImageTag).Run()
	if b, err := buildTestImage(); err == nil {
		os.RemoveAll(b.dir)
	}
}

// realOptions returns options with the test image that need no network.
func realOptions(t *testing.T) Options {
	t.Helper()
	b, err := buildTestImage()
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Image, o.Network, o.HelperPath, o.DiskMB, o.MemoryMB = testImageTag, "none", b.helper, 0, 256
	o.Dir = t.TempDir()
	o.Profile = "p-" + randomHex(4)
	o.ExtraArgs = []string{"--label", testRun + "=1"}
	o.Warn = func(text string) { t.Log("warning:", text) }
	return o
}

func forwardSecret(t *testing.T, o *Options) {
	t.Helper()
	o.Home, o.ForwardEnv = t.TempDir(), []string{"SECRET"}
	if err := os.WriteFile(filepath.Join(o.Home, ".env"), []byte("SECRET=hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func realManager(t *testing.T, o Options) *Manager {
	t.Helper()
	e, err := Docker("")
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(e, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func removeAtCleanup(t *testing.T, o Options) {
	t.Helper()
	t.Cleanup(func() {
		ids, _ := exec.Command("docker", "ps", "-aq", "--filter", "label="+LabelProfile+"="+Sanitise(o.Profile)).Output()
		for id := range strings.FieldsSeq(string(ids)) {
			_ = exec.Command("docker", "rm", "-fv", id).Run()
		}
	})
}

func openSandbox(t *testing.T, m *Manager, task string) *Sandbox {
	t.Helper()
	s, err := m.Open(t.Context(), Key{Task: task})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newRealSandbox(t *testing.T, change func(*Options)) (*Manager, *Sandbox) {
	t.Helper()
	requireEngine(t)
	o := realOptions(t)
	if change != nil {
		change(&o)
	}
	removeAtCleanup(t, o)
	m := realManager(t, o)
	return m, openSandbox(t, m, "")
}

func runForOutput(t *testing.T, s *Sandbox, command string) (string, Result) {
	t.Helper()
	var out bytes.Buffer
	res, err := s.Exec(t.Context(), Request{Command: command, Stdout: &out})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.TrimSpace(out.String()), res
}

func checkOutput(t *testing.T, s *Sandbox, command, text string) {
	t.Helper()
	if got, res := runForOutput(t, s, command); got != text || res.Code != 0 {
		t.Fatalf("%s: got %q and code %d, want %q", command, got, res.Code, text)
	}
}

func dockerCmd(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	for range 20 { // An engine on fuse-overlayfs can't always remove new files at once, so try again.
		if err == nil || !strings.Contains(string(out), "failed to remove root filesystem") {
			break
		}
		<-time.After(100 * time.Millisecond)
		out, err = exec.Command("docker", args...).CombinedOutput()
		if strings.Contains(string(out), "No such container") {
			err = nil
		}
	}
	if err != nil {
		t.Fatalf("docker %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// retryUntilNil repeats ask until it returns no error.
func retryUntilNil(t *testing.T, ask func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestMain(m *testing.M) {
	if what := os.Getenv(helperVar); what != "" {
		if err := runClient(what); err != nil {
			fmt.Fprintln(os.Stderr, "client:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.IsolateProcess()
	testkit.LimitParallel(6)
	code := m.Run()
	removeTestContainers()
	os.Exit(code)
}
