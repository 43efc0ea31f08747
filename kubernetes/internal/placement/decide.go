package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Profile is the controller's view of an AgentProfile. It may be outdated, so each write carries
// the version of the object that was read.
type Profile struct {
	Name       string
	Owner      string // Host that has the data; "" for none.
	Installed  bool   // Whether the owner has confirmed that it has the data.
	MoveTarget string // Host to which the profile moves; "" without a move.
	MoveStuck  bool   // Whether the move has taken too long.
	LastMove   LastMove
	Memory     int64 // Bytes of memory that the placement reserves for the profile.
	Priority   int32
	Pin        string // Host to which a user has pinned the profile; "": any host.
	Pod        string // name of the pod that would run this profile alone
	OwnPod     bool   // Whether the spec asks for a pod of the profile's own.
	Refused    string // Reason why the pod Pod can't be created; "" if it can.
	Lost       string // State of the owner that the controller last reported: [HostLost], [HostRestarts] or "".
	Overdue    bool   // Whether the owner has been restarting for so long that it counts as lost.
	Missing    bool   // Whether the owner has reported that its volume lacks the data.
	Present    bool   // Whether the owner has reported that its volume has the data.
	Pending    string // Reported reason why the profile has no host; "": none.
	LostHost   string // Host on which the user gives up the data with spec.recover; "": none.
	Handled    bool   // Whether the current spec.recover, which may be empty, was already carried out or ignored.
	Deleting   bool
}

// LastMove describes how the last move of a profile has ended.
type LastMove struct {
	FailedTo string // Target of the failed move; "" if no move failed.
	MustWait bool   // Whether the failure is so recent that the next move must wait.
}

// Host is the controller's view of a host: a pod that runs profiles.
type Host struct {
	Name        string
	Ordinal     int    // Number at the end of the name; unused for the pod of a single profile.
	OnlyProfile string // Only profile that the host takes; "": any.
	Zone        string // value of the topology key on the host's node
	WhyUnusable string // Reason why the host can't be used; "" if it can.
	Ready       bool   // Whether the host can take profiles.
	Updated     bool   // Whether the host has the wanted image.
	Replacing   bool   // Whether the pod of the host is ending or starting.
	Serving     bool   // Whether a host that is being replaced still runs its container, and so reports on its gateways.
	NeverSeen   bool   // Whether this controller has not seen any sign of life of the host yet.
	Broken      bool   // Whether the containers don't run although the node is healthy.
}

// Pool is the controller's view of an AgentPool.
type Pool struct {
	Name           string
	Min, Max       int
	Replicas       int      // number of hosts in the StatefulSet
	HostMemory     int64    // Bytes of memory for all profiles on one host.
	Drain          []string // Hosts that are being drained.
	MaxUnavailable int
	SpareSince     time.Time // Time since which one fewer host would suffice; zero: all are needed.
	Leaving        string    // Host that is being removed; "": none.
}

// Values of [MarkUnreachable].Condition and [Profile].Lost: the owner of a profile is lost, or its pod is being replaced. Only
// the controller reports that a lost owner is back. The host may be alive although the controller can't reach it. If such a host
// reported itself as back, the two would overwrite each other's status for ever.
const (
	HostLost     = "HostLost"
	HostRestarts = "HostRestarts"
)

const (
	// maxMoves limits the moves of a pool that run at the same time.
	maxMoves = 4
	// maxFailedMoves is a number of running moves. While that many run, a profile whose last move has failed begins no other
	// move. So such profiles never take all moves.
	maxFailedMoves = maxMoves / 2
)

// MoveDelay returns how long a profile must wait for the next move after failed ones. attempts is the number of failed moves
// in a row.
func MoveDelay(attempts int32) time.Duration {
	return min(5*time.Minute<<min(max(attempts-1, 0), 10), 4*time.Hour)
}

// Plan is the result of [Decide]: what the controller does in one round.
type Plan struct {
	Actions    []Action
	Replicas   int       // Wanted number of hosts in the StatefulSet.
	SinglePods []string  // Names of profiles that each need their own pod.
	SpareSince time.Time // new value of Pool.SpareSince
	Leaving    string    // new value of Pool.Leaving
	Doing      string    // Current activity of the controller, for people; "": none.
}

// round is the state of one call of [Decide].
type round struct {
	Plan
	pool           Pool
	now            time.Time
	hosts          []*hostLoad // Hosts that take any profile.
	singlePods     []*hostLoad // Pods that take one profile each.
	byName         map[string]*hostLoad
	profiles       []Profile
	moves          int    // Number of running moves, see proceeds.
	delayedProfile string // A profile that must move, but waits because its last move failed.
	unplacedMemory int64  // Bytes of all profiles that fit on no host now, but would fit on an empty one.
	tooLarge       string // A profile that does not fit even on an empty host.
}

// hostLoad is a host, with the profiles that are on it or move to it.
type hostLoad struct {
	Host
	used        int64
	profiles    int
	inZone      *int // Number of profiles in the host's zone, shared by all hosts in the zone; never nil.
	schedulable bool // Whether the host may get profiles.
}

// add adds a profile with the given memory, in bytes, to the load.
func (l *hostLoad) add(memory int64) {
	l.used += memory
	l.profiles++
	*l.inZone++
}

// Decide returns what the controller must do about a pool at the time now. It is a pure function: equal arguments give equal
// plans.
func Decide(pool Pool, profiles []Profile, hosts []Host, now time.Time) Plan {
	r := &round{pool: pool, now: now, profiles: slices.Clone(profiles), byName: map[string]*hostLoad{}}
	r.Leaving = pool.Leaving
	slices.SortFunc(r.profiles, func(a, b Profile) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Name, b.Name))
	})
	zones := map[string]*int{}
	for _, h := range hosts {
		l := &hostLoad{Host: h, inZone: new(int), schedulable: h.Ready && h.WhyUnusable == "" && h.Name != pool.Leaving && !slices.Contains(pool.Drain, h.Name)}
		// The host is removed at once, because only a user can have scaled the StatefulSet up.
		if h.OnlyProfile == "" && h.Ordinal >= pool.Replicas {
			l.schedulable = false
		}
		r.byName[h.Name] = l
		if h.OnlyProfile != "" {
			r.singlePods = append(r.singlePods, l)
		} else {
			if zones[h.Zone] == nil {
				zones[h.Zone] = l.inZone
			}
			l.inZone = zones[h.Zone]
			r.hosts = append(r.hosts, l)
		}
	}
	slices.SortFunc(r.hosts, func(a, b *hostLoad) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	slices.SortFunc(r.singlePods, func(a, b *hostLoad) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range r.profiles {
		r.countProfile(p.Owner, p.Memory)
		if p.MoveTarget != "" {
			r.countProfile(p.MoveTarget, p.Memory)
		}
		if r.proceeds(p) {
			r.moves++
		}
	}
	for _, p := range r.profiles {
		if r.needsPod(p) {
			r.SinglePods = append(r.SinglePods, p.Name)
		}
		r.decideProfile(p)
	}
	r.rollout()
	r.scale()
	if r.tooLarge != "" {
		r.Doing = cmp.Or(r.Doing, fmt.Sprintf("finds no room for %s, which needs more memory than one host has for profiles", r.tooLarge))
	}
	if r.delayedProfile != "" {
		r.Doing = cmp.Or(r.Doing, fmt.Sprintf("waits until it moves %s again, whose last move has failed", r.delayedProfile))
	}
	return r.Plan
}

// proceeds reports whether other moves and rollouts must wait for a profile's move. They don't wait for a move that is stuck,
// or whose owner is lost, because it may never end.
func (r *round) proceeds(p Profile) bool {
	owner := r.byName[p.Owner]
	return p.MoveTarget != "" && !p.MoveStuck && owner != nil && (owner.WhyUnusable == "" || owner.Replacing)
}

func (r *round) countProfile(host string, memory int64) {
	if l := r.byName[host]; l != nil {
		l.add(memory)
	}
}

func (r *round) addAction(a Action) { r.Actions = append(r.Actions, a) }

// needsPod reports whether the pod of a profile must exist. While the profile is leaving the pod, the pod stays until the
// data is on the new host.
func (r *round) needsPod(p Profile) bool {
	return p.Owner == p.Pod || p.MoveTarget == p.Pod || p.OwnPod && !p.Deleting || r.podOf(p) != nil && p.Owner != "" && !p.Installed
}

// loadOf returns a host by its name. It returns nil if the host can't take profiles, or takes only a single one.
func (r *round) loadOf(name string) *hostLoad {
	if l := r.byName[name]; l != nil && l.schedulable && l.OnlyProfile == "" {
		return l
	}
	return nil
}

// decideProfile plans the next action for one profile, if any is needed.
func (r *round) decideProfile(p Profile) {
	owner := r.byName[p.Owner]
	what, trouble, serving := HostLost, "its pod does not exist", false
	if owner != nil {
		trouble, serving = owner.WhyUnusable, owner.Serving
	}
	if (owner != nil && owner.Replacing || owner == nil && r.podWillExist(p)) && !p.Overdue {
		what = HostRestarts
	}
	switch {
	case !p.Handled && r.handleRecovery(p, trouble, serving):
	case p.Owner != "" && serving: // The host itself reports on the profile.
	case p.Owner != "" && trouble != "":
		if p.Lost != what && p.Lost != HostLost {
			r.addAction(MarkUnreachable{p.Name, what, fmt.Sprintf("host %s: %s", p.Owner, trouble)})
		}
	case p.Owner != "" && p.Lost == HostLost:
		if !owner.NeverSeen {
			r.addAction(MarkReachable{p.Name})
		}
	case p.Deleting:
	case p.Owner == "":
		r.place(p)
	case p.MoveTarget != "":
		r.followMove(p)
	default:
		r.moveIfNeeded(p)
	}
}

// handleRecovery plans an action if spec.recover has changed, and reports whether it has planned one. It gives up the owner's
// data only if the profile was already reported as lost. So a spec.recover that stays in a manifest does nothing when the
// host restarts, or is lost another time.
func (r *round) handleRecovery(p Profile, trouble string, serving bool) bool {
	switch {
	case p.LostHost == "":
		r.addAction(HandleRecovery{p.Name, ""})
	case p.Owner == "":
		return false
	case p.Owner != p.LostHost:
		r.addAction(HandleRecovery{p.Name, fmt.Sprintf("spec.recover gives up host %s, and the data is on host %s", p.LostHost, p.Owner)})
	case p.Lost == HostLost && trouble != "" && !serving, p.Missing && trouble == "":
		r.addAction(GiveUp{p.Name, p.Owner})
	case p.Present && trouble == "":
		r.addAction(HandleRecovery{p.Name, fmt.Sprintf("spec.recover gives up host %s, which is not lost", p.LostHost)})
	default:
		return false
	}
	return true
}

// place assigns a host to a profile without one, or reports why no host fits.
func (r *round) place(p Profile) {
	if p.OwnPod {
		l := r.podOf(p)
		switch {
		case l == nil:
			r.markPending(p, fmt.Sprintf("waits for its pod %s: %s", p.Pod, cmp.Or(p.Refused, "it does not exist yet")))
		case !l.schedulable:
			r.markPending(p, fmt.Sprintf("waits for its pod %s: %s", p.Pod, cmp.Or(l.WhyUnusable, "it is drained")))
		default:
			r.assign(p, l)
		}
		return
	}
	if p.Pin != "" {
		if l := r.loadOf(p.Pin); l != nil {
			r.assign(p, l)
			return
		}
		r.markPending(p, fmt.Sprintf("waits for host %s, which it is pinned to", p.Pin))
		return
	}
	best := r.bestHost(p.Memory)
	switch {
	case best != nil:
		r.assign(p, best)
	case r.requestHosts(p):
		r.markPending(p, "no host has room for its memory")
	default:
		r.markPending(p, fmt.Sprintf("not even an empty host has room for its memory, %d MiB", p.Memory>>20))
	}
}

// requestHosts asks for more hosts for a profile that fits on no host. possible is false if more hosts would not help.
func (r *round) requestHosts(p Profile) (possible bool) {
	if p.Memory > r.pool.HostMemory {
		r.tooLarge = cmp.Or(r.tooLarge, p.Name)
		return false
	}
	r.unplacedMemory += p.Memory
	return true
}

func (r *round) markPending(p Profile, reason string) {
	if p.Pending != reason {
		r.addAction(MarkPending{p.Name, reason})
	}
}

func (r *round) assign(p Profile, l *hostLoad) {
	l.add(p.Memory)
	r.addAction(Assign{p.Name, l.Name})
}

// bestHost returns the best host that has room for the given memory, or nil. It prefers hosts with the new image, because the
// gateways on other hosts will soon be stopped. Of these it prefers the zone with the fewest profiles, and in that zone the
// fullest host. It never returns a host in not.
func (r *round) bestHost(memory int64, not ...string) *hostLoad {
	var best *hostLoad
	for _, l := range r.hosts {
		if !l.schedulable || slices.Contains(not, l.Name) || l.used+memory > r.pool.HostMemory {
			continue
		}
		if best == nil || l.isBetterThan(best) {
			best = l
		}
	}
	return best
}

// isBetterThan reports whether l is better than b by the rules of [round.bestHost]. Two zones count as equally full if they
// differ by less than a tenth.
func (l *hostLoad) isBetterThan(b *hostLoad) bool {
	if l.Updated != b.Updated {
		return l.Updated
	}
	if here, there := *l.inZone, *b.inZone; l.inZone != b.inZone && (here*10 < there*9 || there*10 < here*9) {
		return here < there
	}
	return l.used > b.used
}

// followMove checks a running move, and cancels it if the target can no longer take the profile. It ignores the target's
// report that it has the data, because the target may lie. If the owner has already given the profile away, the write of the
// cancel fails.
func (r *round) followMove(p Profile) {
	to := r.byName[p.MoveTarget]
	if p.OwnPod != (p.MoveTarget == p.Pod) || to == nil || to.WhyUnusable != "" && !to.Replacing || slices.Contains(r.pool.Drain, p.MoveTarget) || p.MoveTarget == r.pool.Leaving {
		r.addAction(CancelMove{p.Name, "host " + p.MoveTarget + " can't take it"})
		return
	}
	r.Doing = cmp.Or(r.Doing, fmt.Sprintf("moves %s to %s", p.Name, p.MoveTarget))
}

// moveIfNeeded starts a move of a profile to another host, if there is a reason to move it.
func (r *round) moveIfNeeded(p Profile) {
	if !p.Installed || r.moves >= maxMoves || p.LastMove.FailedTo != "" && !p.LastMove.MustWait && r.moves >= maxFailedMoves {
		return
	}
	reason, spare := "", false
	switch {
	case p.OwnPod:
		if l := r.podOf(p); p.Owner != p.Pod && l != nil && l.schedulable {
			r.beginMove(p, l, "it gets a pod of its own")
		}
		return
	case p.Pin != "" && p.Pin != p.Owner:
		if l := r.loadOf(p.Pin); l != nil {
			r.beginMove(p, l, "it is pinned to "+p.Pin)
		}
		return
	case p.Pin == p.Owner && p.Pin != "":
		return // The user's pin overrides the drain of the host.
	case slices.Contains(r.pool.Drain, p.Owner):
		reason = "host " + p.Owner + " is drained"
	case p.Owner == p.Pod:
		reason = "it is to be packed"
	case p.Owner == r.pool.Leaving && r.pool.Replicas > r.pool.Max:
		reason = fmt.Sprintf("host %s is to go: hosts.max is %d", p.Owner, r.pool.Max)
	case p.Owner == r.pool.Leaving:
		reason, spare = "host "+p.Owner+" is spare", true
	default:
		return
	}
	// Prefer another host than the one of the last failed move, which may be the cause of the failure.
	best := cmp.Or(r.bestHost(p.Memory, p.Owner, p.LastMove.FailedTo), r.bestHost(p.Memory, p.Owner))
	switch {
	case best != nil:
		r.beginMove(p, best, reason)
	case !spare: // Wait: if the profiles don't fit elsewhere, the host stays, and no host is added for them.
		r.requestHosts(p)
	}
}

func (r *round) beginMove(p Profile, to *hostLoad, reason string) {
	if p.LastMove.MustWait {
		r.delayedProfile = cmp.Or(r.delayedProfile, p.Name)
		return
	}
	to.add(p.Memory)
	r.moves++
	r.addAction(StartMove{p.Name, to.Name, reason})
	r.Doing = cmp.Or(r.Doing, fmt.Sprintf("moves %s to %s", p.Name, to.Name))
}
