package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
	"hinit/sandbox/policy"
)

// TestInventedHomes checks that an agent that names 2,048 invented homes does not lock out other
// profiles.
func TestInventedHomes(t *testing.T) {
	h := newService(t, &notifyingEngine{})
	home := h.opts.Home
	ask := func(claimed string) (*tenant, func(), error) {
		return h.tenant(t.Context(), daemon.Peer{PID: os.Getpid(), UID: 10000, GID: 10000}, claimed)
	}
	for _, claimed := range []string{home, "", "/elsewhere", "/elsewhere/profiles/x", home + "/profiles/../.."} {
		if _, done, err := ask(claimed); err != nil {
			t.Errorf("%q: %v", claimed, err)
		} else {
			done()
		}
	}
	if len(h.tenants) != 1 {
		t.Errorf("homes that are none of the volume's are %d tenants", len(h.tenants))
	}
	if _, _, err := ask(home + "/profiles/invented"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "there is no home") {
		t.Errorf("an invented home: %v", err)
	}
	// The limit must also hold for homes that exist.
	for i := range maxTenants + 50 {
		claimed := filepath.Join(home, "profiles", "p"+strconv.Itoa(i))
		if err := os.MkdirAll(claimed, 0o700); err != nil {
			t.Fatal(err)
		}
		_, done, err := ask(claimed)
		if err != nil {
			t.Fatal(i, err)
		}
		done()
	}
	if len(h.tenants) > maxTenants {
		t.Errorf("there are %d tenants", len(h.tenants))
	}
	if _, _, err := h.tenant(t.Context(), daemon.Peer{PID: os.Getpid(), UID: 0}, home); err != nil {
		t.Errorf("another user: %v", err)
	}
}

// TestTooManyCommands checks the command limit of a profile. Commands of other profiles and of root
// don't count.
func TestTooManyCommands(t *testing.T) {
	h := newService(t, &notifyingEngine{})
	if err := os.MkdirAll(h.opts.Home+"/profiles/other", 0o700); err != nil {
		t.Fatal(err)
	}
	ask := func(uid uint32, home string) error {
		_, _, err := h.tenant(t.Context(), daemon.Peer{PID: os.Getpid(), UID: uid, GID: uid}, home)
		return err
	}
	for range maxProfileCommands {
		if err := errors.Join(ask(10000, h.opts.Home), ask(0, h.opts.Home)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(10000, h.opts.Home); err == nil || !strings.Contains(err.Error(), `128 commands of the profile "default" run already`) {
		t.Error(err)
	}
	if err := errors.Join(ask(10000, h.opts.Home+"/profiles/other"), ask(0, h.opts.Home)); err != nil {
		t.Error(err)
	}
}

// TestACancelledRequestHidTheGatewaysFromOthers checks that the cached list of gateways survives
// the cancellation of the request that fetched it.
func TestACancelledRequestHidTheGatewaysFromOthers(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/control.sock")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"services":[{"name":"gateway-coder","profile":"coder","pid":77}]}`)
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	gateways := newGatewayLookup(func(name string) (string, bool) { return dir, name == "HINIT_RUNTIME_DIR" })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if got := gateways(gone); got[77] != "coder" {
		t.Errorf("the gateways are %v", got)
	}
}

// listCountingEngine is an engine that counts its list calls.
type listCountingEngine struct {
	notifyingEngine
	n int
}

func (c *listCountingEngine) List(context.Context, map[string]string) ([]sandbox.Container, error) {
	c.n++
	return nil, nil
}

func (*listCountingEngine) Inspect(context.Context, string) (sandbox.Container, error) {
	return sandbox.Container{}, sandbox.ErrGone
}

func (*listCountingEngine) Info(context.Context) (sandbox.Info, error) { return sandbox.Info{}, nil }

// TestAMillionNamesFilledTheServicesMemory checks that `hinit sandbox rm` reports each unknown
// sandbox at once. The service would otherwise keep an error for each name.
func TestAMillionNamesFilledTheServicesMemory(t *testing.T) {
	engine := &listCountingEngine{}
	h := newService(t, engine)
	one, done, err := h.tenant(t.Context(), daemon.Peer{PID: os.Getpid(), UID: 10000, GID: 10000}, h.opts.Home)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	ctx, cancel := context.WithCancel(t.Context())
	var messages []string
	errs := writerFunc(func(text []byte) {
		if messages = append(messages, string(text)); len(messages) != engine.n && ctx.Err() == nil {
			t.Errorf("%d errors are written after %d names", len(messages), engine.n)
		}
		if len(messages) == 3 {
			cancel() // The caller has disconnected.
		}
	})
	code := runRequest(ctx, one.manager, daemon.Request{Args: append([]string{"rm"}, strings.Fields(strings.Repeat("x ", 100_000))...)}, nil, daemon.Streams{Out: io.Discard, Err: errs})
	if code != cmdline.ExitUnknown || engine.n > 4 || !strings.Contains(messages[0], `cannot find "x": no such sandbox`) {
		t.Errorf("code %d after %d names: %.200q", code, engine.n, messages[0])
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(text []byte) (int, error) { f(text); return len(text), nil }

// newService returns a service without a listener.
func newService(t *testing.T, engine sandbox.FullEngine) *service {
	t.Helper()
	h := &service{
		engine: engine, gate: &policy.Gate{}, opts: sandbox.DefaultOptions(), log: t.Logf, tenants: map[tenantKey]*tenant{},
		gateways: func(context.Context) map[int]string { return nil },
	}
	h.opts.Home, h.opts.HelperPath, h.settings.state = t.TempDir(), "/proc/self/exe", filepath.Join(t.TempDir(), "state")
	if err := h.prepareState(); err != nil {
		t.Fatal(err)
	}
	return h
}

// refusingEngine is an engine that refuses to create containers.
type refusingEngine struct{ notifyingEngine }

func (*refusingEngine) Create(context.Context, sandbox.Spec) (string, error) {
	return "", sandbox.ErrRefused
}

func (*refusingEngine) Info(context.Context) (sandbox.Info, error) { return sandbox.Info{}, nil }

func (*refusingEngine) Image(context.Context, string) (sandbox.Image, error) {
	return sandbox.Image{}, nil
}

// TestRefusedSandboxesFillNoDirectory checks that refused requests create no directories in the
// service's state.
func TestRefusedSandboxesFillNoDirectory(t *testing.T) {
	h := newService(t, &refusingEngine{})
	one, done, err := h.tenant(t.Context(), daemon.Peer{PID: os.Getpid(), UID: 10000, GID: 10000}, h.opts.Home)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	for i := range 20 {
		if _, err := one.manager.Open(t.Context(), sandbox.Key{Task: fmt.Sprint("t", i)}); !errors.Is(err, sandbox.ErrRefused) {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{h.settings.state, h.opts.Home} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if base := filepath.Base(path); base == "workspace" || base == "t0" {
				t.Errorf("%s was made for a sandbox that was refused", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
