package registry

import (
	"context"
	"sync/atomic"

	"hinit/supervisor"
)

// The needs of services (contract, section 2).
const (
	NeedBoot     = "boot"     // the hooks have run, and the profiles have been read or do not answer
	NeedProfiles = "profiles" // the profiles have been read, and what their last gateways have left is removed
)

// needs says which needs are met. A need is set here before the supervisor is told.
type needs struct {
	boot, profiles atomic.Bool
	inOrder        atomic.Bool
}

func (n *needs) of(need string) *atomic.Bool {
	if need == NeedBoot {
		return &n.boot
	}
	return &n.profiles
}

// Meet starts everything that waits for a need. It fails when the container has ended.
func (r *Registry) Meet(ctx context.Context, need string) error {
	r.met.of(need).Store(true)
	return r.Do(ctx, supervisor.Met{Need: need})
}

// StartInOrder makes gateways wait until all profiles are known, so that the profile that was used last starts first.
func (r *Registry) StartInOrder(on bool) { r.met.inOrder.Store(on) }

// unmet returns what a service has to wait for: a gateway for the boot's decision about its profile, a hook for nothing, any other
// service for the boot.
func (r *Registry) unmet(u supervisor.Unit) []string {
	switch {
	case u.Kind == supervisor.KindService && !r.met.boot.Load():
		return []string{NeedBoot}
	case u.Kind == supervisor.KindGateway && !r.met.profiles.Load() && (!r.Exists(u.Profile) || r.met.inOrder.Load()):
		return []string{NeedProfiles}
	}
	return nil
}

// meetLate tells the supervisor again of needs that were met while a service was registered.
func (r *Registry) meetLate(u supervisor.Unit) {
	for _, need := range u.Needs {
		if r.met.of(need).Load() {
			r.Post(supervisor.Met{Need: need})
		}
	}
}
