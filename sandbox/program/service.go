package program

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/client"
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

// service is the sandbox service. It keeps a tenant for each user and profile, and handles each request with its caller's
// tenant.
type service struct {
	engine       sandbox.FullEngine
	opts         sandbox.Options // Options that the operator has set for all callers.
	settings     settings
	translator   policy.PathTranslator
	gate         *policy.Gate
	agent        *account.User                            // The agent's user; nil if it does not exist.
	log          func(string, ...any)                     // Writes a message for the operator.
	gateways     func(ctx context.Context) map[int]string // Returns the profile of each gateway process, by pid.
	startedAt    time.Time                                // Start time of the service.
	scanRequests chan struct{}                            // Receives a value when a container may have become unused.
	releaseTimer *time.Timer                              // Calls releaseMemory some time after the last request.
	release      tuning.Releaser

	sweeper        *sandbox.Manager // Manager that removes unused sandboxes of all tenants.
	ownerProcesses []string         // Names of live processes that own sandboxes; used only by the goroutine of cleanUp.

	mu      sync.Mutex
	tenants map[tenantKey]*tenant
}

type tenantKey struct {
	uid      uint32
	profile  string
	operator bool // True for the tenant of root, which sees the containers of all profiles.
}

// tenant is the data of the service for one user and profile.
type tenant struct {
	requests    int // Number of requests in progress.
	lastRequest time.Time
	manager     *sandbox.Manager
}

// handle executes a request with its caller's tenant, and returns the exit code.
func (h *service) handle(ctx context.Context, from daemon.Peer, req daemon.Request, s daemon.Streams) int {
	defer h.releaseTimer.Reset(releaseAfter)
	t, done, err := h.tenant(ctx, from, req.Home)
	if err != nil {
		fmt.Fprintln(s.Err, err)
		return cmdline.ExitFailed
	}
	defer done()
	// If PID is 0, the caller is in another container, and the service can't see its parent.
	if _, parent, _ := dockercli.ProcessName(from.PID); from.PID != 0 {
		req.Parent, _, _ = dockercli.ProcessName(parent) // Ignore the error: Parent is then "", because a process has ended.
	}
	return runRequest(ctx, t.manager, req, nil, s)
}

// maxTenants limits the tenants in memory. If another one is needed, the service drops all tenants without a request in
// progress. Nothing is lost, because all state is in the containers and their labels.
const maxTenants = 512

// tenantKeepTime returns how long the service keeps a tenant without requests. During that time, the tenant's sandboxes count as
// used.
func (h *service) tenantKeepTime() time.Duration { return max(15*time.Minute, h.opts.Lifetime) }

// tenant returns the tenant of the caller, and makes it at the first request. claimed is the home directory that the caller
// states. After the request, the function done must be called.
func (h *service) tenant(ctx context.Context, from daemon.Peer, claimed string) (t *tenant, done func(), err error) {
	home, profile, err := h.profileOf(ctx, from.PID, claimed)
	if err != nil {
		return nil, nil, err
	}
	operator := from.UID == 0
	// Act as the agent for an operator too, because the agent owns the files of an operator's sandboxes.
	if h.agent != nil && (operator || from.UID == h.agent.UID) {
		from.UID, from.GID = h.agent.UID, h.agent.GID
	}
	key := tenantKey{from.UID, sandbox.Sanitise(profile), operator}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t = h.tenants[key]; t == nil {
		if h.dropIdleTenants(h.tenantKeepTime()); len(h.tenants) >= maxTenants {
			h.dropIdleTenants(0)
		}
		if t, err = h.newTenant(key, from, home, profile); err != nil {
			return nil, nil, err
		}
		h.tenants[key] = t
	}
	if t.requests >= maxProfileCommands && !operator {
		return nil, nil, fmt.Errorf("cannot use the sandboxes: %d commands of the profile %q run already; try again when one has ended", t.requests, key.profile)
	}
	t.requests++
	return t, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		t.requests--
		t.lastRequest = time.Now()
	}, nil
}

// maxProfileCommands limits the commands of one profile that run at the same time. An operator has no limit.
const maxProfileCommands = 128

// dropIdleTenants drops the tenants without a request in progress whose last request is at least the time after ago. It reports
// whether tenants are left. The caller holds the lock.
func (h *service) dropIdleTenants(after time.Duration) (remaining bool) {
	for k, t := range h.tenants {
		if t.requests == 0 && time.Since(t.lastRequest) >= after {
			delete(h.tenants, k) // The tenant's containers keep running.
			// Closing can't fail, because the engine stays open.
			guard.Go("letting go of sandboxes", func() { _ = t.manager.Close() })
		}
	}
	return len(h.tenants) > 0
}

// releaseAfter is how long after the last request unused memory is returned to the kernel.
const releaseAfter = time.Minute

// releaseMemory drops idle tenants and returns unused memory to the kernel, because the service idles most of the time.
func (h *service) releaseMemory() {
	h.release.Release(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dropIdleTenants(h.tenantKeepTime()) {
		h.releaseTimer.Reset(h.tenantKeepTime())
	}
}

// newTenant makes the tenant of a user and profile.
func (h *service) newTenant(key tenantKey, from daemon.Peer, home, profile string) (*tenant, error) {
	name := strconv.FormatUint(uint64(from.UID), 10) + "-" + key.profile
	opts := h.opts
	opts.Home, opts.Profile, opts.Session = home, profile, "cli-"+name
	opts.State, opts.Dir = filepath.Join(h.settings.state, "state"), filepath.Join(home, "sandboxes")
	opts.AttachOnly, opts.RootDescription = true, h.gate.KnownRootMode().String()
	if h.gate.KnownRootMode() == policy.RootCaller {
		opts.NoRootHint = "hinit: commands here run as their caller (user " + strconv.FormatUint(uint64(from.UID), 10) + "), without root; " + policy.RootAdvice
	}
	opts.SweepOrphans = false // The service itself sweeps for all tenants.
	// With these options, root would read any file to which a link in the caller's home points. Callers can set variables
	// with exec -e instead.
	opts.ForwardEnv, opts.Credentials, opts.MountCwd = nil, nil, false
	owner := policy.Owner{UID: from.UID, Profile: key.profile, Volume: h.volume(), Operator: key.operator}
	if from.UID != 0 {
		owner.Actor = fsutil.NewActor(fsutil.Identity{UID: from.UID, GID: from.GID})
	}
	manager, err := sandbox.NewManager(policy.Guard(h.engine, h.settings.policy, owner, h.translator, h.gate), opts)
	return &tenant{manager: manager}, err
}

// prepareState makes the state directory of all tenants, which only this user can read, and the manager that removes unused
// sandboxes. It also stores the id of the volume. The id is derived from the volume's path on the engine's machine. So it
// stays the same when hinit's own container is replaced, and the sandboxes still belong to the volume.
func (h *service) prepareState() error {
	state := filepath.Join(h.settings.state, "state")
	err := errors.Join(os.MkdirAll(state, 0o700), os.Chmod(h.settings.state, 0o700),
		os.WriteFile(filepath.Join(state, "volume"), []byte(h.volume()+"\n"), 0o600))
	if err != nil {
		return fmt.Errorf("cannot keep the state of sandboxes: %w", err)
	}
	opts := h.opts
	opts.State, opts.AttachOnly, opts.SweepOrphans = state, true, false
	h.sweeper, err = sandbox.NewManager(policy.Guard(h.engine, h.settings.policy, policy.Owner{Operator: true, Volume: h.volume()}, h.translator, h.gate), opts)
	return err
}

// volume returns the id of the volume, see [service.prepareState].
func (h *service) volume() string {
	place, ok := h.translator.ToEngine(h.opts.Home)
	if !ok {
		place = h.opts.Home
	}
	id := sha256.Sum256([]byte(place))
	return fmt.Sprintf("%x", id[:8])
}

// profileOf returns the home directory and the profile of a caller. If the process pid descends from a gateway that hinit
// knows, it returns the gateway's profile. Otherwise it derives the profile from claimed, the home that the caller states.
// All profiles run as one user, so this prevents mistakes, not attacks (docs/explanation/sandboxes.md). A home outside of
// this volume's profiles counts as the default profile. A profile without a directory is an error.
func (h *service) profileOf(ctx context.Context, pid int, claimed string) (home, profile string, err error) {
	profiles := filepath.Join(h.opts.Home, "profiles")
	gateways := h.gateways(ctx)
	for at := pid; at > 1 && len(gateways) > 0; {
		if profile, is := gateways[at]; is {
			if profile == "default" {
				return h.opts.Home, profile, nil
			}
			return filepath.Join(profiles, profile), profile, nil
		}
		_, parent, err := dockercli.ProcessName(at)
		if err != nil {
			break
		}
		at = parent
	}
	home = filepath.Clean(claimed)
	if filepath.Dir(home) != profiles {
		return h.opts.Home, "default", nil
	}
	dir, err := fsutil.OpenDir(h.opts.Home, fsutil.ProcessActor())
	if err == nil {
		defer dir.Close()
		var info fs.FileInfo
		if info, err = dir.Lstat("profiles/" + filepath.Base(home)); err == nil && !info.IsDir() {
			err = errors.New("it is no directory")
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("cannot use the sandboxes of the profile %q: there is no home %q (%w)", filepath.Base(home), home, err)
	}
	return home, filepath.Base(home), nil
}

// gatewaysKeepTime is how long the service caches hinit's list of gateways. An agent often sends many commands in a row.
const gatewaysKeepTime = 2 * time.Second

// newGatewayLookup returns a function that asks hinit for the profile of each gateway process. If hinit does not run in this
// container, the function returns nil.
func newGatewayLookup(lookup func(string) (string, bool)) func(context.Context) map[int]string {
	cl := cmdline.ClientForThisContainer(lookup)
	var mu sync.Mutex
	var known map[int]string
	var at time.Time
	return func(ctx context.Context) map[int]string {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) < gatewaysKeepTime {
			return known
		}
		known, at = nil, time.Now()
		status, err := cl.Status(context.WithoutCancel(ctx)) // Other callers use the answer too, so don't cancel with this one.
		if err != nil {
			return nil
		}
		known = lo.FilterSliceToMap(status.Services, func(s client.Service) (int, string, bool) {
			return s.PID, s.Profile, s.Profile != "" && s.PID > 0
		})
		return known
	}
}
