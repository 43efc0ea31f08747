package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"hinit/internal/account"
	"hinit/internal/fsutil"
	"hinit/sandbox"
	"hinit/sandbox/cli"
	"hinit/sandbox/daemon"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

// hub has one tenant for each user and profile, and answers requests with the tenant of their caller.
type hub struct {
	engine   sandbox.Engine
	opts     sandbox.Options // the operator's
	set      settings
	places   policy.Places
	gate     *policy.Gate
	agent    *account.User // nil where there is none
	say      func(string, ...any)
	gateways func(ctx context.Context) map[int]string // profiles by the process of their gateway
	began    time.Time
	changed  chan struct{} // a container may be one that nobody uses any more
	asked    chan struct{} // a request was answered

	mu      sync.Mutex
	tenants map[tenantKey]*tenant
	used    map[string]time.Time // what callers call a container → when it was used last
}

type tenantKey struct {
	uid      uint32
	profile  string
	operator bool // root, who sees the containers of all profiles
}

// tenant is what the service has for one user and profile.
type tenant struct {
	docker *dockercli.Personality
	host   *cli.Host
}

// handle answers one request.
func (h *hub) handle(ctx context.Context, from daemon.Peer, req daemon.Request, s daemon.Streams) int {
	defer tell(h.asked)
	t, err := h.tenant(ctx, from, req.Home)
	if err != nil {
		fmt.Fprintln(s.Err, err)
		return cli.Failed
	}
	if !req.Docker {
		return cli.Main(ctx, t.host, &cli.Call{
			Args: req.Args, Env: req.Env, In: s.In, Out: s.Out, Err: s.Err, TTY: req.TTY, Size: req.Size, Resizes: s.Resizes, Signals: s.Signals,
		})
	}
	_, parent, err := dockercli.Process(from.PID)
	if err != nil {
		parent = 0 // it has gone
	}
	h.use(req)
	defer h.use(req)
	return asked(ctx, t.docker, req, nil, parent, s)
}

// use notes that a container is in use.
func (h *hub) use(req daemon.Request) {
	call, err := dockercli.Parse(req.Args, nil)
	exec, is := call.(*dockercli.Exec)
	if err != nil || !is {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.used) > 4096 { // names that nobody has; who is in use says so again
		clear(h.used)
	}
	h.used[exec.Container] = time.Now()
}

// mostTenants bounds what a caller that says it is always another one can make the service keep. hinit itself follows 2000 profiles.
const mostTenants = 2048

// tenant returns the caller's, made at the first request.
func (h *hub) tenant(ctx context.Context, from daemon.Peer, claimed string) (*tenant, error) {
	home, profile := h.profileOf(ctx, from.PID, claimed)
	operator := from.UID == 0
	if operator && h.agent != nil { // what commands of the sandbox leave on the volume is the agent's
		from.UID, from.GID = h.agent.UID, h.agent.GID
	}
	key := tenantKey{from.UID, sandbox.Sanitise(profile), operator}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tenants[key]; t != nil {
		return t, nil
	}
	if len(h.tenants) >= mostTenants {
		return nil, fmt.Errorf("cannot use the sandboxes: there are %d profiles already", len(h.tenants))
	}
	name := strconv.FormatUint(uint64(from.UID), 10) + "-" + key.profile
	if operator {
		name += "-operator"
	}
	opts := h.opts
	opts.Home, opts.Profile, opts.Session = home, profile, "cli-"+name
	opts.State, opts.Dir = filepath.Join(h.set.state, name, "state"), filepath.Join(h.set.state, name, "dirs")
	opts.Apart, opts.Root = true, h.gate.Root().String()
	if h.gate.Root() == policy.RootCaller {
		opts.NoRoot = "hinit: commands here run as their caller (user " + strconv.FormatUint(uint64(from.UID), 10) + "), without root; " + policy.RootWays
	}
	opts.Orphans, opts.Persist = false, true // the hub sweeps, for all
	// The caller could lead root to any file by a name in its home; it passes on what it wants to by exec -e.
	opts.ForwardEnv, opts.Pass, opts.Credentials, opts.MountCwd = nil, nil, nil, false
	owner := policy.Owner{UID: from.UID, Profile: key.profile, State: opts.Dir, Dir: filepath.Join(home, "sandboxes")}
	if owner.All = operator; from.UID != 0 {
		owner.Actor = fsutil.NewActor(fsutil.Identity{UID: from.UID, GID: from.GID})
	}
	if err := h.stateDir(opts.State); err != nil {
		return nil, err
	}
	engine := policy.Guard(h.engine, h.set.policy, owner, h.places, h.gate)
	manager, err := sandbox.NewManager(engine, opts)
	if err != nil {
		return nil, err
	}
	t := &tenant{
		docker: &dockercli.Personality{Engine: engine, Manager: manager, Store: dockercli.NewMemoryStore()},
		host:   &cli.Host{Manager: manager, Engine: engine, Profile: profile},
	}
	h.tenants[key] = t
	tell(h.changed) // it may have left something before this service began
	return t, nil
}

// prepareState makes the directory of all tenants, for this user alone.
func (h *hub) prepareState() error {
	err := os.Mkdir(h.set.state, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot keep the state of sandboxes: %w", err)
	}
	return os.Chmod(h.set.state, 0o700)
}

// stateDir makes the directory of one tenant. The identity of the volume in it is made of the place that the volume has with the engine, so
// that a container that hinit made before its own was replaced is still of the same volume.
func (h *hub) stateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot keep the state of sandboxes: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "volume"), []byte(h.volume()+"\n"), 0o600); err != nil {
		return fmt.Errorf("cannot keep the state of sandboxes: %w", err)
	}
	return nil
}

// volume is the identity of the volume.
func (h *hub) volume() string {
	place, ok := h.places.Outside(h.opts.Home)
	if !ok {
		place = h.opts.Home
	}
	id := sha256.Sum256([]byte(place))
	return hex.EncodeToString(id[:8])
}

// close lets go of every sandbox; they go on.
func (h *hub) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tenants {
		if err := t.host.Manager.Close(ctx); err != nil {
			h.say("cannot let go of the sandboxes: %v", err)
		}
	}
}
