package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profile is the controller's view of an AgentProfile. The view may be stale. Therefore each write carries the version of the
// object that was read.
type Profile struct {
	Name      string
	Owner     string // the name of the host that has the data, or "" if none
	Installed bool   // the owner has the data
	To        string // the host that a move goes to, or "" without a move
	Received  bool   // the new host has stored the data: the move ends without the controller
	LastMove  LastMove
	Memory    int64 // the memory, in bytes, that the placement reserves for the profile
	Priority  int32
	Pin       string // the only host on which the profile may be, or "" for any host
	Pod       string // the name of the pod that would run this profile alone
	OwnPod    bool   // the spec asks for Pod, and not for a host with other profiles
	Refused   string // why the pod called Pod can't be created, or "" if it can
	Lost      string // what was last reported about the owner: [HostLost], [HostRestarts], or "" for nothing
	Overdue   bool   // the owner has been restarting for too long, and is treated as lost
	Missing   bool   // the owner has reported that the data is not on its volume
	Here      bool   // the owner has reported that the data is on its volume
	Pending   string // the reported reason why the profile is pending, or "" if it is not
	LostHost  string // the host whose data the user gives up with spec.recover, or "" if none
	Handled   bool   // the present spec.recover, which may be empty, is recorded as handled
	Deleting  bool
}

// LastMove says how the last move of a profile has ended.
type LastMove struct {
	FailedTo string // the host to which it has failed, or "" if it has not
	Waits    bool   // it has failed so recently that the next one must wait
}

// Host is the controller's view of a host: a pod that runs profiles.
type Host struct {
	Name      string
	Ordinal   int
	For       string // the only profile that the host takes, or "" if the host takes any profile
	Zone      string // the value of the topology key on the host's node
	Trouble   string // why the host can't be used, or "" if it can
	Ready     bool   // the host can take profiles
	Updated   bool   // the host has the wanted image
	Replacing bool   // the host's pod is ending or starting
	Serving   bool   // the host is being replaced, but its container runs: its gateways may answer, and it reports on them
	Unheard   bool   // this controller has seen no sign of life of the host yet
	Broken    bool   // the host's containers don't run although its node is healthy
}

// Pool is the controller's view of an AgentPool.
type Pool struct {
	Name           string
	Min, Max       int
	Replicas       int      // the number of hosts that the StatefulSet has
	Room           int64    // the memory, in bytes, that the profiles on one host may have together
	Drain          []string // the hosts that are being drained
	MaxUnavailable int
	SpareSince     time.Time // time since which one host less has been enough, or zero if all hosts are needed
	Leaving        string    // the host that is being removed, or "" if none
}

// Values of [MarkUnreachable].What and [Profile].Lost: the owner of a profile is lost, or its pod is being replaced. Only the
// controller reports that a lost owner is back, because the host may be alive although the controller can't reach it. If the host
// itself reported this, the host and the controller would overwrite each other's status forever.
const (
	HostLost     = "HostLost"
	HostRestarts = "HostRestarts"
)

const (
	// maxMoves is the maximum number of moves that are in progress in a pool at the same time.
	maxMoves = 4
	// maxFailedMoves is the maximum number of moves in progress at which the move of a profile may begin whose last move has
	// failed. So such profiles never take all moves.
	maxFailedMoves = maxMoves / 2
)

// MoveDelay returns the time until the next move of a profile whose moves have failed. The parameter attempts is their number.
func MoveDelay(attempts int32) time.Duration {
	return min(5*time.Minute<<min(max(attempts-1, 0), 10), 4*time.Hour)
}

// Action is one step that the controller takes. It is one of the types below.
type Action interface{ action() }

type (
	// Assign makes Host the owner of a profile that has none.
	Assign struct{ Profile, Host string }
	// StartMove starts a move of a profile to the host To.
	StartMove struct{ Profile, To, Reason string }
	// CancelMove ends a move that can't be completed.
	CancelMove struct{ Profile, Reason string }
	// MarkUnreachable reports that the owner of a profile is lost or restarting.
	MarkUnreachable struct{ Profile, What, Reason string }
	// MarkReachable reports that the lost owner of a profile is back.
	MarkReachable struct{ Profile string }
	// MarkPending reports why a profile has no host.
	MarkPending struct{ Profile, Reason string }
	// GiveUp removes the owner of a profile and forgets its data, as the user has asked with spec.recover. It records that this
	// was done.
	GiveUp struct{ Profile, Owner string }
	// HandleRecovery records that spec.recover was handled although nothing is given up. Ignored is the reason why spec.recover
	// was ignored, or "" if the user has removed spec.recover.
	HandleRecovery struct{ Profile, Ignored string }
	// Replace restarts the container or the pod of a host, so that it runs the wanted image.
	Replace struct{ Host string }
)

func (Assign) action()          {}
func (StartMove) action()       {}
func (CancelMove) action()      {}
func (MarkUnreachable) action() {}
func (MarkReachable) action()   {}
func (MarkPending) action()     {}
func (GiveUp) action()          {}
func (HandleRecovery) action()  {}
func (Replace) action()         {}

// Plan is the controller's decision in one round.
type Plan struct {
	Actions    []Action
	Replicas   int      // the wanted number of hosts in the StatefulSet
	Alone      []string // the profiles that each need a separate pod
	SpareSince time.Time
	Leaving    string
	Doing      string // what is in progress, as text for messages; "" if nothing is
}

// round holds the intermediate state of one call of [Decide].
type round struct {
	Plan
	pool           Pool
	now            time.Time
	hosts          []*hostLoad // hosts that take any profile
	alone          []*hostLoad // pods that take one profile each
	byName         map[string]*hostLoad
	profiles       []Profile
	moves          int    // moves in progress
	waiting        string // a profile that has to move and waits, because its last move has failed
	unplacedMemory int64  // the total memory of the profiles that no host has room for, but an empty one would have
	tooLarge       string // a profile that not even an empty host has room for
}

// hostLoad is a host together with its load: the profiles that are placed on the host or are moving to it.
type hostLoad struct {
	Host
	used        int64
	profiles    int
	inZone      *int // the number of profiles in the host's zone, shared by all hosts of the zone; not nil
	schedulable bool // the host may get profiles
}

// add counts one more profile on the host, which needs the given memory in bytes.
func (l *hostLoad) add(memory int64) {
	l.used += memory
	l.profiles++
	*l.inZone++
}

// Decide returns what the controller has to do about a pool now. The same input always gives the same plan.
func Decide(pool Pool, profiles []Profile, hosts []Host, now time.Time) Plan {
	r := &round{pool: pool, now: now, profiles: slices.Clone(profiles), byName: map[string]*hostLoad{}}
	r.Leaving = pool.Leaving
	slices.SortFunc(r.profiles, func(a, b Profile) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.Name, b.Name))
	})
	zones := map[string]*int{}
	for _, h := range hosts {
		l := &hostLoad{Host: h, inZone: new(int), schedulable: h.Ready && h.Trouble == "" && h.Name != pool.Leaving && !slices.Contains(pool.Drain, h.Name)}
		r.byName[h.Name] = l
		if h.For != "" {
			r.alone = append(r.alone, l)
		} else {
			if zones[h.Zone] == nil {
				zones[h.Zone] = l.inZone
			}
			l.inZone = zones[h.Zone]
			r.hosts = append(r.hosts, l)
		}
	}
	slices.SortFunc(r.hosts, func(a, b *hostLoad) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	slices.SortFunc(r.alone, func(a, b *hostLoad) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range r.profiles {
		r.count(p.Owner, p.Memory)
		if p.To != "" {
			r.count(p.To, p.Memory)
			r.moves++
		}
	}
	for _, p := range r.profiles {
		if r.needsPod(p) {
			r.Alone = append(r.Alone, p.Name)
		}
		r.decide(p)
	}
	r.rollout()
	r.scale()
	if r.tooLarge != "" {
		r.Doing = cmp.Or(r.Doing, fmt.Sprintf("finds no room for %s, which needs more memory than one host has for profiles", r.tooLarge))
	}
	if r.waiting != "" {
		r.Doing = cmp.Or(r.Doing, fmt.Sprintf("waits until it moves %s again, whose last move has failed", r.waiting))
	}
	return r.Plan
}

func (r *round) count(host string, memory int64) {
	if l := r.byName[host]; l != nil {
		l.add(memory)
	}
}

func (r *round) do(a Action) { r.Actions = append(r.Actions, a) }

// needsPod reports whether the pod of a profile must exist. A pod that the profile is leaving stays until the data is on the new
// host.
func (r *round) needsPod(p Profile) bool {
	return p.Owner == p.Pod || p.To == p.Pod || p.OwnPod && !p.Deleting || r.byName[p.Pod] != nil && p.Owner != "" && !p.Installed
}

// loadOf returns a host by name, or nil if it can't take profiles or is reserved for a single profile.
func (r *round) loadOf(name string) *hostLoad {
	if l := r.byName[name]; l != nil && l.schedulable && l.For == "" {
		return l
	}
	return nil
}

// decide plans the next action for one profile, if any.
func (r *round) decide(p Profile) {
	owner := r.byName[p.Owner]
	what, trouble, serving := HostLost, "its pod does not exist", false
	if owner != nil {
		trouble, serving = owner.Trouble, owner.Serving
	}
	if (owner != nil && owner.Replacing || owner == nil && r.podWillExist(p)) && !p.Overdue {
		what = HostRestarts
	}
	switch {
	case !p.Handled && r.recover(p, trouble, serving):
	case p.Owner != "" && serving: // the host itself reports on the profile
	case p.Owner != "" && trouble != "":
		if p.Lost != what && p.Lost != HostLost {
			r.do(MarkUnreachable{p.Name, what, fmt.Sprintf("host %s: %s", p.Owner, trouble)})
		}
	case p.Owner != "" && p.Lost == HostLost:
		if !owner.Unheard {
			r.do(MarkReachable{p.Name})
		}
	case p.Deleting:
	case p.Owner == "":
		r.place(p)
	case p.To != "":
		r.follow(p)
	default:
		r.move(p)
	}
}

// podWillExist reports whether the pod of a profile's owner will be created. The StatefulSet of the hosts creates it, or it is
// created for this profile.
func (r *round) podWillExist(p Profile) bool {
	n := r.ordinal(p.Owner)
	return p.Owner == p.Pod || n >= 0 && n < r.pool.Replicas
}

// ordinal returns the number at the end of a host's name. It returns -1 for the pod of a single profile, and for a host of
// another pool.
func (r *round) ordinal(host string) int {
	number, is := strings.CutPrefix(host, r.pool.Name+"-")
	if n, err := strconv.Atoi(number); is && err == nil {
		return n
	}
	return -1
}

// recover plans one action for each change of spec.recover, and reports whether it has planned an action. It gives up the owner's
// data only if the profile was reported as lost before. So a spec.recover that is left in a manifest does nothing when the host
// restarts, or is lost another time.
func (r *round) recover(p Profile, trouble string, serving bool) bool {
	switch {
	case p.LostHost == "":
		r.do(HandleRecovery{p.Name, ""})
	case p.Owner == "":
		return false
	case p.Owner != p.LostHost:
		r.do(HandleRecovery{p.Name, fmt.Sprintf("spec.recover gives up host %s, and the data is on host %s", p.LostHost, p.Owner)})
	case p.Lost == HostLost && trouble != "" && !serving, p.Missing && trouble == "":
		r.do(GiveUp{p.Name, p.Owner})
	case p.Here && trouble == "":
		r.do(HandleRecovery{p.Name, fmt.Sprintf("spec.recover gives up host %s, which is not lost", p.LostHost)})
	default:
		return false
	}
	return true
}

// place assigns a host to a profile that has none, or reports why none fits.
func (r *round) place(p Profile) {
	if p.OwnPod {
		l := r.byName[p.Pod]
		switch {
		case l == nil:
			r.hold(p, fmt.Sprintf("waits for its pod %s: %s", p.Pod, cmp.Or(p.Refused, "it does not exist yet")))
		case !l.schedulable:
			r.hold(p, fmt.Sprintf("waits for its pod %s: %s", p.Pod, cmp.Or(l.Trouble, "it is drained")))
		default:
			r.give(p, l)
		}
		return
	}
	if p.Pin != "" {
		if l := r.loadOf(p.Pin); l != nil {
			r.give(p, l)
			return
		}
		r.hold(p, fmt.Sprintf("waits for host %s, which it is pinned to", p.Pin))
		return
	}
	best := r.best(p.Memory)
	switch {
	case best != nil:
		r.give(p, best)
	case r.addRoom(p):
		r.hold(p, "no host has room for its memory")
	default:
		r.hold(p, fmt.Sprintf("not even an empty host has room for its memory, %d MiB", p.Memory>>20))
	}
}

// addRoom asks for more hosts for a profile that no host has room for. It returns false if more hosts would not help.
func (r *round) addRoom(p Profile) bool {
	if p.Memory > r.pool.Room {
		r.tooLarge = cmp.Or(r.tooLarge, p.Name)
		return false
	}
	r.unplacedMemory += p.Memory
	return true
}

func (r *round) hold(p Profile, reason string) {
	if p.Pending != reason {
		r.do(MarkPending{p.Name, reason})
	}
}

func (r *round) give(p Profile, l *hostLoad) {
	l.add(p.Memory)
	r.do(Assign{p.Name, l.Name})
}

// best returns the best host that still has room for a profile with this memory, or nil. It prefers hosts with the new image,
// because gateways on the other hosts will soon be stopped. Among these hosts, it prefers the zone with the fewest profiles, and
// in this zone the fullest host. The parameter not names the hosts to exclude.
func (r *round) best(memory int64, not ...string) *hostLoad {
	var best *hostLoad
	for _, l := range r.hosts {
		if !l.schedulable || slices.Contains(not, l.Name) || l.used+memory > r.pool.Room {
			continue
		}
		if best == nil || l.better(best) {
			best = l
		}
	}
	return best
}

// better reports whether l is a better host for a profile than b, by the rules of the method best. It treats two zones as equally
// full if they differ by less than a tenth.
func (l *hostLoad) better(b *hostLoad) bool {
	if l.Updated != b.Updated {
		return l.Updated
	}
	if here, there := *l.inZone, *b.inZone; l.inZone != b.inZone && (here*10 < there*9 || there*10 < here*9) {
		return here < there
	}
	return l.used > b.used
}

// follow checks a move in progress, and cancels it if the target can no longer take the profile.
func (r *round) follow(p Profile) {
	to := r.byName[p.To]
	if !p.Received && (p.OwnPod != (p.To == p.Pod) || to == nil || to.Trouble != "" && !to.Replacing || slices.Contains(r.pool.Drain, p.To) || p.To == r.pool.Leaving) {
		r.do(CancelMove{p.Name, "host " + p.To + " can't take it"})
		return
	}
	r.Doing = cmp.Or(r.Doing, fmt.Sprintf("moves %s to %s", p.Name, p.To))
}

// move starts a move of a profile to another host if there is a reason for a move.
func (r *round) move(p Profile) {
	if !p.Installed || r.moves >= maxMoves || p.LastMove.FailedTo != "" && !p.LastMove.Waits && r.moves >= maxFailedMoves {
		return
	}
	reason, spare := "", false
	switch {
	case p.OwnPod:
		if l := r.byName[p.Pod]; p.Owner != p.Pod && l != nil && l.schedulable {
			r.begin(p, l, "it gets a pod of its own")
		}
		return
	case p.Pin != "" && p.Pin != p.Owner:
		if l := r.loadOf(p.Pin); l != nil {
			r.begin(p, l, "it is pinned to "+p.Pin)
		}
		return
	case p.Pin == p.Owner && p.Pin != "":
		return // the user's pin has priority over draining
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
	best := cmp.Or(r.best(p.Memory, p.Owner, p.LastMove.FailedTo), r.best(p.Memory, p.Owner)) // the other host may be the cause
	switch {
	case best != nil:
		r.begin(p, best, reason)
	case !spare: // otherwise the spare host stays, and no host is added for its profiles
		r.addRoom(p)
	}
}

func (r *round) begin(p Profile, to *hostLoad, reason string) {
	if p.LastMove.Waits {
		r.waiting = cmp.Or(r.waiting, p.Name)
		return
	}
	to.add(p.Memory)
	r.moves++
	r.do(StartMove{p.Name, to.Name, reason})
	r.Doing = cmp.Or(r.Doing, fmt.Sprintf("moves %s to %s", p.Name, to.Name))
}
