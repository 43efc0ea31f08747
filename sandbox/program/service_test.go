package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hinit/sandbox"
	"hinit/sandbox/daemon"
	"hinit/sandbox/policy"
)

// TestInventedHomes checks that an agent that names 2,048 invented homes does not lock out other profiles.
func TestInventedHomes(t *testing.T) {
	home := t.TempDir()
	h := &service{
		engine: &quiet{}, gate: &policy.Gate{}, opts: sandbox.DefaultOptions(), log: t.Logf, tenants: map[tenantKey]*tenant{},
		gateways: func(context.Context) map[int]string { return nil },
	}
	h.opts.Home, h.opts.Helper, h.settings.state = home, "/proc/self/exe", filepath.Join(t.TempDir(), "state")
	if err := h.prepareState(); err != nil {
		t.Fatal(err)
	}
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
	// The same must hold for homes that the agent has made.
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

// TestTooManyCommands checks the limits of commands of a profile, of a user and of all users. Commands of root must
// have no limit.
func TestTooManyCommands(t *testing.T) {
	busy := func(profile string, uid uint32, n int) map[tenantKey]*tenant {
		return map[tenantKey]*tenant{{uid, profile, false}: {requests: n}, {7, "other", false}: {requests: 200}, {7, "x", true}: {requests: 50}}
	}
	for _, c := range []struct {
		tenants map[tenantKey]*tenant
		key     tenantKey
		in      bool
	}{
		{nil, tenantKey{7, "p", false}, true},
		{busy("p", 8, maxProfileCommands), tenantKey{8, "p", false}, false},
		{busy("p", 8, maxProfileCommands), tenantKey{8, "q", false}, true},
		{busy("p", 7, maxUserCommands-200), tenantKey{7, "q", false}, false},
		{busy("p", 7, maxUserCommands-200), tenantKey{7, "q", true}, true},
		{busy("p", 9, maxCommands-250), tenantKey{8, "q", false}, false},
		{busy("p", 9, maxCommands-251), tenantKey{8, "q", false}, true},
	} {
		if err := (&service{tenants: c.tenants}).checkLimits(c.key); (err == nil) != c.in {
			t.Errorf("%+v: %v", c.key, err)
		}
	}
}

// refusing is an engine that refuses to make a container.
type refusing struct{ quiet }

func (*refusing) Create(context.Context, sandbox.Spec) (string, error) {
	return "", sandbox.ErrRefused
}

func (*refusing) Info(context.Context) (sandbox.Info, error) { return sandbox.Info{}, nil }

func (*refusing) Image(context.Context, string) (sandbox.Image, error) { return sandbox.Image{}, nil }

// TestRefusedSandboxesFillNoDirectory checks that a refused request makes no directories in the service's state. A
// caller can name a new task with each command.
func TestRefusedSandboxesFillNoDirectory(t *testing.T) {
	h := &service{
		engine: &refusing{}, gate: &policy.Gate{}, opts: sandbox.DefaultOptions(), log: t.Logf, tenants: map[tenantKey]*tenant{},
		gateways: func(context.Context) map[int]string { return nil },
	}
	h.opts.Home, h.opts.Helper, h.settings.state = t.TempDir(), "/proc/self/exe", filepath.Join(t.TempDir(), "state")
	if err := h.prepareState(); err != nil {
		t.Fatal(err)
	}
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
