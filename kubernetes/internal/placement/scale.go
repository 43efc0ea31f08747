package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits for removing a host. The last host is spare under two conditions. All profiles fill at most the fraction spareMemoryFraction of
// the other hosts' memory. Each of its own profiles fits on one of them. When it has been spare for spareDelay, it is removed.
const (
	spareDelay          = 10 * time.Minute
	spareMemoryFraction = 0.75
)

// rollout replaces hosts that run an old image. Pods of single profiles are replaced independently of the others.
func (r *round) rollout() {
	left := 0
	for _, l := range slices.Concat(r.hosts, r.singlePods) {
		if !l.Updated {
			left++
		}
	}
	if left == 0 {
		return
	}
	r.Doing = cmp.Or(r.Doing, fmt.Sprintf("replaces hosts for the new image, %d to go", left))
	r.replace(r.hosts)
	r.replace(r.singlePods)
}

// replace plans the replacement of hosts with an old image. It replaces broken hosts at once, and others only while fewer
// than MaxUnavailable hosts are unavailable.
func (r *round) replace(hosts []*hostLoad) {
	var old []*hostLoad
	away := 0
	for _, l := range hosts {
		switch {
		case !l.Replacing && l.WhyUnusable == "":
			if !l.Updated {
				old = append(old, l)
			}
		case !l.Updated && l.Broken: // Replace the host at once, because its image may be the reason.
			r.addAction(Replace{l.Name})
			away++
		default:
			away++
		}
	}
	slices.Reverse(old) // Begin with the highest ordinal, as a StatefulSet does.
	for _, l := range old {
		if away >= r.pool.MaxUnavailable {
			return
		}
		if r.hasMove(l.Name) {
			continue // A replacement now would interrupt a move.
		}
		r.addAction(Replace{l.Name})
		away++
	}
}

// hasMove reports whether a profile moves from or to a host. It ignores a profile whose last move has failed: that move might
// never end, and the replacement of the host interrupts only that move.
func (r *round) hasMove(host string) bool {
	return slices.ContainsFunc(r.profiles, func(p Profile) bool {
		return r.proceeds(p) && p.LastMove.FailedTo == "" && (p.Owner == host || p.MoveTarget == host)
	})
}

// scale decides the number of hosts, and whether the last host is removed.
func (r *round) scale() {
	n := max(r.pool.Min, r.pool.Replicas)
	if r.unplacedMemory > 0 && r.pool.HostMemory > 0 {
		coming := max(0, r.pool.Replicas-r.settledHosts()) // Number of hosts that will soon take profiles.
		n += max(0, int((r.unplacedMemory+r.pool.HostMemory-1)/r.pool.HostMemory)-coming)
	}
	rolling := strings.HasPrefix(r.Doing, "replaces hosts")
	r.Replicas = max(min(n, r.pool.Max), r.pool.Replicas) // Don't remove hosts here: a host must be drained first.
	for _, p := range r.profiles {
		r.Replicas = max(r.Replicas, r.ordinal(p.Owner)+1) // Bring back a removed host that owns a profile.
	}
	r.Leaving = ""
	switch {
	case r.Replicas > r.pool.Replicas:
	case r.pool.Replicas > r.pool.Max:
		r.removeLastHost(fmt.Sprintf(": hosts.max is %d", r.pool.Max))
	case r.unplacedMemory == 0 && !rolling && r.isSpare():
		r.removeLastHost(", which is spare")
	}
}

// settledHosts counts the hosts for which the controller need not wait. Each of them takes profiles, is drained, or is lost.
func (r *round) settledHosts() int {
	n := 0
	for _, l := range r.hosts {
		if l.Ready || l.WhyUnusable != "" && !l.Replacing || slices.Contains(r.pool.Drain, l.Name) {
			n++
		}
	}
	return n
}

// isSpare reports whether the host with the highest ordinal has been spare for the time spareDelay. It also sets r.SpareSince.
func (r *round) isSpare() bool {
	last := len(r.hosts) - 1
	if r.pool.Replicas <= r.pool.Min || last < 0 || r.hosts[last].Ordinal != r.pool.Replicas-1 || slices.ContainsFunc(r.hosts, func(l *hostLoad) bool { return l.WhyUnusable != "" || l.Replacing }) {
		return false
	}
	var used int64
	takers := 0
	for _, l := range r.hosts {
		used += l.used
		if l.schedulable && l.Ordinal != r.pool.Replicas-1 {
			takers++
		}
	}
	if float64(used) > spareMemoryFraction*float64(r.pool.HostMemory)*float64(takers) {
		return false
	}
	if slices.ContainsFunc(r.profiles, func(p Profile) bool { return p.Pin == r.hosts[last].Name }) || !r.fitElsewhere(r.hosts[last]) {
		return false
	}
	r.SpareSince = r.pool.SpareSince
	if r.SpareSince.IsZero() {
		r.SpareSince = r.now
	}
	return r.now.Sub(r.SpareSince) >= spareDelay
}

// fitElsewhere reports whether all profiles of a host would fit on other hosts, if they moved one after the other.
func (r *round) fitElsewhere(host *hostLoad) bool {
	var rooms []int64
	for _, l := range r.hosts {
		if l.schedulable && l != host {
			rooms = append(rooms, r.pool.HostMemory-l.used)
		}
	}
	slices.Sort(rooms)
	for _, p := range r.profiles { // Within a priority, place the largest profile first.
		if p.Owner != host.Name || p.MoveTarget != "" || r.isMoving(p.Name) {
			continue
		}
		i, _ := slices.BinarySearch(rooms, p.Memory)
		if i == len(rooms) {
			return false
		}
		rooms[i] -= p.Memory
		slices.Sort(rooms)
	}
	return true
}

// isMoving reports whether this round has already planned a move of the profile, and so counted its memory on the new host.
func (r *round) isMoving(profile string) bool {
	return slices.ContainsFunc(r.Actions, func(a Action) bool {
		move, ok := a.(StartMove)
		return ok && move.Profile == profile
	})
}

// removeLastHost marks the host with the highest ordinal as leaving, so that its profiles move away, and removes it when it
// is empty. The host stays while a profile is pinned to it, or while the data of one of its profiles can't be reached. why is
// the reason for the removal, for people.
func (r *round) removeLastHost(why string) {
	r.Leaving = fmt.Sprintf("%s-%d", r.pool.Name, r.pool.Replicas-1)
	doing := "drains " + r.Leaving + why
	empty := true
	for _, p := range r.profiles {
		if p.Owner != r.Leaving && p.MoveTarget != r.Leaving {
			continue
		}
		empty = false
		if p.Pin == r.Leaving {
			doing = fmt.Sprintf("can't drain %s%s; %s is pinned to it", r.Leaving, why, p.Name)
		}
	}
	if !empty && (r.unplacedMemory > 0 || r.tooLarge != "") {
		doing += "; the other hosts have no room for all profiles"
	}
	if empty && r.pool.Leaving == r.Leaving {
		r.Replicas, r.Leaving, r.SpareSince = r.pool.Replicas-1, "", time.Time{}
	}
	r.Doing = cmp.Or(r.Doing, doing)
}

// podOf returns the pod that runs only this profile, or nil. It checks the profile, because the pod of another profile may
// have the same name.
func (r *round) podOf(p Profile) *hostLoad {
	if l := r.byName[p.Pod]; l != nil && l.OnlyProfile == p.Name {
		return l
	}
	return nil
}

// podWillExist reports whether the pod of a profile's owner will be created, by the StatefulSet of the hosts or for this
// profile alone.
func (r *round) podWillExist(p Profile) bool {
	n := r.ordinal(p.Owner)
	return p.Owner == p.Pod || n >= 0 && n < r.pool.Replicas
}

// maxPoolHosts is the largest value of hosts.max. A pool can't have a host with a higher number.
const maxPoolHosts = 1000

// ordinal returns the number at the end of a host's name. It returns -1 for the pod of a single profile and for a host of
// another pool.
func (r *round) ordinal(host string) int {
	number, is := strings.CutPrefix(host, r.pool.Name+"-")
	if n, err := strconv.Atoi(number); is && err == nil && n < maxPoolHosts {
		return n
	}
	return -1
}
