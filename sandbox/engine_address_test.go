package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func errorString(v any) string { return fmt.Sprint(v) }

// TestFindEngine checks that the engine's address is found without running a docker command
// (contract, 19.1).
func TestFindEngine(t *testing.T) {
	config := t.TempDir()
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, "")
	}
	t.Setenv("DOCKER_CONFIG", config)
	sum := sha256.Sum256([]byte("there"))
	meta := filepath.Join(config, "contexts/meta", hex.EncodeToString(sum[:]))
	certs := filepath.Join(config, "contexts/tls", hex.EncodeToString(sum[:]), "docker")
	if err := errors.Join(
		os.MkdirAll(meta, 0o755), os.MkdirAll(certs, 0o755),
		os.WriteFile(meta+"/meta.json", []byte(`{"Name":"there","Endpoints":{"docker":{"Host":"tcp://there:2376"}}}`), 0o644),
		os.WriteFile(certs+"/ca.pem", nil, 0o644),
		os.WriteFile(config+"/config.json", []byte(`{"currentContext":"there","auths":{}}`), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	check := func(name, given, host, tls, problem string) {
		t.Helper()
		at, err := findEngine(given)
		if at.host != host || at.certDir != tls || (problem == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %+v, %v", name, at, err)
		}
	}
	check("named", "unix:///x.sock", "unix:///x.sock", "", "")
	check("current context", "", "tcp://there:2376", certs, "")
	t.Setenv("DOCKER_CONTEXT", "missing")
	check("a context that isn't there", "", "", "", `cannot use the docker context "missing"`)
	t.Setenv("DOCKER_HOST", "tcp://here:1")
	check("DOCKER_HOST wins", "", "tcp://here:1", "", "")
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	t.Setenv("DOCKER_CERT_PATH", "/certs")
	check("with certificates", "", "tcp://here:1", "/certs", "")
	t.Setenv("DOCKER_HOST", "")
	t.Setenv("DOCKER_CONTEXT", "default")
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if err := os.Mkdir(dir+"/podman", 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/podman/podman.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if at, err := findEngine(""); err != nil || !strings.HasPrefix(at.host, "unix:///") {
		t.Errorf("a socket that is there: %+v, %v", at, err)
	}
}

// TestStateOf checks that the states of all engines are translated to Docker's names.
func TestStateOf(t *testing.T) {
	for text, want := range map[string]State{
		"Running": Running, "exited": Exited, "configured": Created, "initialized": Created, "stopping": Running, "stopped": Exited, "paused": Paused,
	} {
		if got := stateOf(text); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	e, err := Docker("unix://" + t.TempDir() + "/none.sock")
	if err != nil {
		t.Fatal(err)
	}
	o := fakeOptions(t)
	m, err := NewManager(e, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Open(t.Context(), Key{}); !errors.Is(err, ErrNoEngine) {
		t.Error(err)
	}
}

// TestAnEngineThatHangsOverAContainer checks that a command fails in time if the engine never
// answers about its container.
func TestAnEngineThatHangsOverAContainer(t *testing.T) {
	old := engineAnswerTimeout
	engineAnswerTimeout = 50 * time.Millisecond
	defer func() { engineAnswerTimeout = old }()
	socket := t.TempDir() + "/hangs.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := Docker("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	_, inspect := e.Inspect(t.Context(), "c")
	_, exec := e.Exec(t.Context(), "c", ExecSpec{})
	_, list := e.List(t.Context(), nil)
	_, volumes := e.Volumes(t.Context(), "", nil)
	_, info := e.Info(t.Context())
	_, image := e.Image(t.Context(), "i")
	for call, err := range map[string]error{
		"inspect": inspect, "exec": exec, "unpause": e.Unpause(t.Context(), "c"), "stop": e.Stop(t.Context(), "c", 0), "rm": e.Remove(t.Context(), "c"), "rename": e.Rename(t.Context(), "c", "d"),
		"start": e.Start(t.Context(), "c"), "copy": e.CopyIn(t.Context(), "c", "/", strings.NewReader("")), "list": list, "volumes": volumes, "info": info, "image": image,
	} {
		if !errors.Is(err, ErrNoEngine) || !strings.Contains(err.Error(), "has to be restarted") {
			t.Errorf("%s: %v", call, err)
		}
	}
}
