package sandbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveOverTCP makes an engine reachable by TCP, and returns its address.
func serveOverTCP(t *testing.T, host string) string {
	t.Helper()
	path := strings.TrimPrefix(host, "unix://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	pump := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", path)
			if err != nil {
				near.Close()
				continue
			}
			go func() {
				defer near.Close()
				defer far.Close()
				go pump(far, near)
				pump(near, far)
			}()
		}
	}()
	return "tcp://" + l.Addr().String()
}

// TestRealRemote checks a remote engine, named by DOCKER_HOST or by the docker context. It can't
// mount this machine's volume, so the helper is copied into the container.
func TestRealRemote(t *testing.T) {
	requireEngine(t)
	o := realOptions(t)
	o.MemoryMB, o.CPUs = 0, 0
	e := newEngine(t, o.Dir, filepath.Dir(o.HelperPath))
	e.loadTestImage()
	o.EngineAddress = serveOverTCP(t, e.host)
	engine, err := Docker(o.EngineAddress)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(engine, o)
	if err != nil {
		t.Fatal(err)
	}
	s := checkLifecycle(t, m, ExecAttached)

	config := t.TempDir()
	sum := sha256.Sum256([]byte("far"))
	meta := filepath.Join(config, "contexts/meta", hex.EncodeToString(sum[:]))
	if err := errors.Join(os.MkdirAll(meta, 0o755), os.WriteFile(config+"/config.json", []byte(`{"currentContext":"far"}`), 0o644),
		os.WriteFile(meta+"/meta.json", []byte(`{"Name":"far","Endpoints":{"docker":{"Host":"`+o.EngineAddress+`"}}}`), 0o644)); err != nil {
		t.Fatal(err)
	}
	unnamed := o
	unnamed.EngineAddress = ""
	for _, env := range [][]string{{"DOCKER_HOST=" + o.EngineAddress, "DOCKER_CONTEXT="}, {"DOCKER_HOST=", "DOCKER_CONTEXT=", "DOCKER_CONFIG=" + config}} {
		if err := helperProcess(t, unnamed, "run", "hostname >> /workspace/who", env...).Wait(); err != nil {
			t.Errorf("another process, by %q: %v", env, err)
		}
	}
	checkOutput(t, s, "sort /workspace/who | uniq -c | tr -s ' '", "2 "+shortID(s.ID()))

	checkRemoval(t, m, s)
}

// TestRealAnotherEngine checks the engine at HINIT_SANDBOX_TEST_ENGINE, for example podman, with
// the runtime in HINIT_SANDBOX_TEST_RUNTIME.
func TestRealAnotherEngine(t *testing.T) {
	host, runtime := os.Getenv("HINIT_SANDBOX_TEST_ENGINE"), os.Getenv("HINIT_SANDBOX_TEST_RUNTIME")
	if host == "" && runtime == "" {
		t.Skip("no other engine or runtime is named")
	}
	requireEngine(t)
	if host != "" {
		image := exec.Command("sh", "-c", "docker save "+testImageTag+" | docker -H "+host+" load")
		if out, err := image.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	o := realOptions(t)
	o.MemoryMB, o.CPUs, o.EngineAddress, o.Runtime = 0, 0, host, runtime
	o.ExtraArgs = append(o.ExtraArgs, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024") // Podman's defaults may exceed root's limits.
	engine, err := Docker(o.EngineAddress)
	if err != nil {
		t.Fatal(err)
	}
	info, err := engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(engine, o)
	if err != nil {
		t.Fatal(err)
	}
	s := checkLifecycle(t, m, "")
	d, err := s.Describe(t.Context())
	t.Logf("%+v: commands run %q because of %q; %v", info, d.Exec, d.Reason, err)
	checkRemoval(t, m, s)
}

// checkLifecycle checks that a sandbox keeps its state and leaves no process running, as with every
// engine.
func checkLifecycle(t *testing.T, m *Manager, way string) *Sandbox {
	t.Helper()
	s := openSandbox(t, m, "")
	if d, err := s.Describe(t.Context()); err != nil || way != "" && d.Exec != way {
		t.Errorf("commands run %q because of %q; %v", d.Exec, d.Reason, err)
	}
	checkOutput(t, s, "cd /workspace; export A=kept; echo x > file", "")
	checkOutput(t, s, "echo $A $(pwd) $(cat file)", "kept /workspace x")

	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	var out, errs bytes.Buffer
	res, err := s.Exec(t.Context(), Request{Argv: []string{"sh", "-c", "cat; echo end >&2; exit 5"}, Stdin: bytes.NewReader(big), Stdout: &out, Stderr: &errs})
	if err != nil || res.Code != 5 || !bytes.Equal(out.Bytes(), big) || errs.String() != "end\n" {
		t.Errorf("%+v, %v, %d bytes, %q", res, err, out.Len(), errs.String())
	}
	res, err = s.Exec(t.Context(), Request{Command: "setsid sleep 98768 & sleep 98768", Timeout: 500 * time.Millisecond})
	if err != nil || res.Code != CodeTimedOut {
		t.Errorf("%+v, %v", res, err)
	}
	checkOutput(t, s, "ps | grep -c '[s]leep 98768' || true", "0")
	return s
}

// checkRemoval removes the container during a command, recreates it, and removes everything.
func checkRemoval(t *testing.T, m *Manager, s *Sandbox) {
	t.Helper()
	_, err := runDuring(t, s, Request{Command: "sleep 600"}, func() {
		if err := m.engine.Remove(t.Context(), s.ID()); err != nil {
			t.Error(err)
		}
	})
	checkLostByRemoval(t, err)
	checkOutput(t, s, "cat file", "x")
	if err := removeSandboxes(t.Context(), m, s.key); err != nil {
		t.Error(err)
	}
	if list, err := m.engine.List(t.Context(), map[string]string{LabelProfile: s.Labels()[LabelProfile]}); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}
