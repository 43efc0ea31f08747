package program

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
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/tuning"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

// service keeps a tenant for each user and profile. It handles each request with the tenant of the caller.
type service struct {
	engine       sandbox.FullEngine
	opts         sandbox.Options // options of the operator
	settings     settings
	places       policy.Places
	gate         *policy.Gate
	agent        *account.User // nil if the agent's user does not exist
	log          func(string, ...any)
	gateways     func(ctx context.Context) map[int]string // returns the profile of each gateway process
	began        time.Time
	changed      chan struct{} // signals that a container may have become unused
	releaseTimer *time.Timer   // calls rest after the last request
	release      tuning.Releaser

	sweeper *sandbox.Manager // manages the sandboxes of all tenants

	mu      sync.Mutex
	tenants map[tenantKey]*tenant
}

type tenantKey struct {
	uid      uint32
	profile  string
	operator bool // root, who sees the containers of all profiles
}

// tenant is the service's record of one user and profile.
type tenant struct {
	requests    int // requests in progress
	lastRequest time.Time
	manager     *sandbox.Manager
}

// handle handles one request and returns its exit code.
func (h *service) handle(ctx context.Context, from daemon.Peer, req daemon.Request, s daemon.Streams) int {
	defer h.releaseTimer.Reset(releaseAfter)
	t, done, err := h.tenant(ctx, from, req.Home)
	if err != nil {
		fmt.Fprintln(s.Err, err)
		return cmdline.Failed
	}
	defer done()
	if _, parent, _ := dockercli.ProcessName(from.PID); from.PID != 0 { // PID 0: the caller is in another container of this pod, and names its parent itself
		req.Parent, _, _ = dockercli.ProcessName(parent) // "" if the caller or its parent has ended
	}
	return runRequest(ctx, t.manager, req, nil, s)
}

// maxTenants is the largest number of tenants. If another one is needed, the service drops all tenants without a request in
// progress. No state is lost: it is in the containers and their labels.
const maxTenants = 512

// tenantKept is how long a tenant without requests is kept. As long as it is kept, its sandboxes count as used.
func (h *service) tenantKept() time.Duration { return max(15*time.Minute, h.opts.Lifetime) }

// tenant returns the tenant of the caller; the first request creates it. The caller calls done when the request has been
// answered.
func (h *service) tenant(ctx context.Context, from daemon.Peer, claimed string) (t *tenant, done func(), err error) {
	home, profile, err := h.profileOf(ctx, from.PID, claimed)
	if err != nil {
		return nil, nil, err
	}
	operator := from.UID == 0
	if h.agent != nil && (operator || from.UID == h.agent.UID) { // the files of an operator's sandboxes belong to the agent too
		from.UID, from.GID = h.agent.UID, h.agent.GID
	}
	key := tenantKey{from.UID, sandbox.Sanitise(profile), operator}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.checkLimits(key); err != nil {
		return nil, nil, err
	}
	if t = h.tenants[key]; t == nil {
		if h.dropIdle(h.tenantKept()); len(h.tenants) >= maxTenants {
			h.dropIdle(0)
		}
		if t, err = h.newTenant(key, from, home, profile); err != nil {
			return nil, nil, err
		}
		h.tenants[key] = t
	}
	t.requests++
	return t, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		t.requests--
		t.lastRequest = time.Now()
	}, nil
}

// These are the largest numbers of commands at the same time: of all users, of one user, and of one profile. If a caller does not
// read its output, the service holds two windows of package mux for the command, and as much again for each of them. That is at
// most 400 MB for one user.
const (
	maxCommands        = 512
	maxUserCommands    = 256
	maxProfileCommands = 128
)

// checkLimits returns an error if another command would exceed a limit. An operator's command is always allowed. The caller holds
// the lock.
func (h *service) checkLimits(key tenantKey) error {
	all, user, profile := 0, 0, 0
	for k, t := range h.tenants {
		all += t.requests
		if k.uid == key.uid && !k.operator {
			user += t.requests
		}
		if k == key {
			profile = t.requests
		}
	}
	switch {
	case key.operator:
	case profile >= maxProfileCommands:
		return fmt.Errorf("cannot use the sandboxes: %d commands of the profile %q run already; try again when one has ended", profile, key.profile)
	case user >= maxUserCommands, all >= maxCommands:
		return errors.New("cannot use the sandboxes: too many commands run already; try again when one has ended")
	}
	return nil
}

// dropIdle drops tenants without a request in progress whose last request is at least the time after ago. It reports whether any
// tenant is left. The caller holds the lock.
func (h *service) dropIdle(after time.Duration) (left bool) {
	for k, t := range h.tenants {
		if t.requests == 0 && time.Since(t.lastRequest) >= after {
			delete(h.tenants, k)                                                  // its containers keep running
			guard.Go("letting go of sandboxes", func() { _ = t.manager.Close() }) // closing a manager does not close the engine, so it can't fail
		}
	}
	return len(h.tenants) > 0
}

// releaseAfter is the time between the last request and the release of unused memory.
const releaseAfter = time.Minute

// releaseMemory returns memory that commands and the engine's answers have used to the kernel.
func (h *service) releaseMemory() {
	h.release.Release()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dropIdle(h.tenantKept()) {
		h.releaseTimer.Reset(h.tenantKept())
	}
}

// newTenant makes the record that the service keeps for one user and profile.
func (h *service) newTenant(key tenantKey, from daemon.Peer, home, profile string) (*tenant, error) {
	name := strconv.FormatUint(uint64(from.UID), 10) + "-" + key.profile
	opts := h.opts
	opts.Home, opts.Profile, opts.Session = home, profile, "cli-"+name
	opts.State, opts.Dir = filepath.Join(h.settings.state, "state"), filepath.Join(h.settings.state, "dirs", name)
	opts.AttachOnly, opts.Root = true, h.gate.Root().String()
	if h.gate.Root() == policy.RootCaller {
		opts.NoRoot = "hinit: commands here run as their caller (user " + strconv.FormatUint(uint64(from.UID), 10) + "), without root; " + policy.RootWays
	}
	opts.SweepOrphans = false // the service sweeps for all tenants
	// With these options a caller could make root read any file that a link in its home names. A caller passes variables by exec
	// -e.
	opts.ForwardEnv, opts.Credentials, opts.MountCwd = nil, nil, false
	owner := policy.Owner{UID: from.UID, Profile: key.profile, Volume: h.volume(), State: opts.Dir, Dir: filepath.Join(home, "sandboxes"), Operator: key.operator}
	if from.UID != 0 {
		owner.Actor = fsutil.NewActor(fsutil.Identity{UID: from.UID, GID: from.GID})
	}
	manager, err := sandbox.NewManager(policy.Guard(h.engine, h.settings.policy, owner, h.places, h.gate), opts)
	return &tenant{manager: manager}, err
}

// prepareState makes the directories of all tenants, readable for this user alone, and the manager that sweeps for all tenants.
// The identity of the volume is the path that the engine has for it. So a container still belongs to the volume after hinit's own
// container was replaced.
func (h *service) prepareState() error {
	state := filepath.Join(h.settings.state, "state")
	err := errors.Join(os.MkdirAll(state, 0o700), os.Chmod(h.settings.state, 0o700), os.RemoveAll(filepath.Join(h.settings.state, "dirs")),
		os.WriteFile(filepath.Join(state, "volume"), []byte(h.volume()+"\n"), 0o600))
	if err != nil {
		return fmt.Errorf("cannot keep the state of sandboxes: %w", err)
	}
	opts := h.opts
	opts.State, opts.AttachOnly, opts.SweepOrphans = state, true, false
	h.sweeper, err = sandbox.NewManager(policy.Guard(h.engine, h.settings.policy, policy.Owner{Operator: true, Volume: h.volume()}, h.places, h.gate), opts)
	return err
}

// volume returns the identity of the volume.
func (h *service) volume() string {
	place, ok := h.places.Outside(h.opts.Home)
	if !ok {
		place = h.opts.Home
	}
	id := sha256.Sum256([]byte(place))
	return hex.EncodeToString(id[:8])
}
