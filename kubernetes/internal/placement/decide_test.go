package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func hostsOf(n int) (out []Host) {
	for i := range n {
		out = append(out, Host{Name: fmt.Sprintf("pool-%d", i), Ordinal: i, Zone: fmt.Sprintf("zone%d", i), Ready: true, Updated: true})
	}
	return out
}

func poolOf(n int) Pool {
	return Pool{Name: "pool", Min: 1, Max: 10, Replicas: n, HostMemory: 1000, MaxUnavailable: 1}
}

func TestDecide(t *testing.T) {
	here := func(name, host string) Profile { return Profile{Name: name, Owner: host, Installed: true, Memory: 300} }
	two := hostsOf(2)
	for _, c := range []struct {
		name     string
		pool     func(*Pool)
		hosts    []Host
		profiles []Profile
		want     []Action
		replicas int
	}{
		{"the fullest host that has room gets it", nil, []Host{two[0], {Name: "pool-1", Ordinal: 1, Zone: "zone0", Ready: true, Updated: true}}, []Profile{here("a", "pool-1"), {Name: "b", Memory: 300}}, []Action{Assign{"b", "pool-1"}}, 2},
		{"zones are kept even", nil, two, []Profile{here("a", "pool-1"), {Name: "b", Memory: 300}}, []Action{Assign{"b", "pool-0"}}, 2},
		{"a host over its bound gets none", nil, two[:1], []Profile{here("a", "pool-0"), {Name: "b", Memory: 800}}, []Action{MarkPending{"b", "no host has room for its memory"}}, 2},
		{"the important one comes first", nil, two[:1], []Profile{{Name: "a", Memory: 700}, {Name: "b", Memory: 700, Priority: 1}}, []Action{Assign{"b", "pool-0"}, MarkPending{"a", "no host has room for its memory"}}, 2},
		{"a pinned one waits for its host", nil, two, []Profile{{Name: "a", Memory: 1, Pin: "pool-7"}}, []Action{MarkPending{"a", "waits for host pool-7, which it is pinned to"}}, 2},
		{"nothing moves without a reason", nil, two, []Profile{here("a", "pool-0"), here("b", "pool-0"), here("c", "pool-0")}, nil, 2},
		{"a pin moves", nil, two, []Profile{{Name: "a", Owner: "pool-0", Installed: true, Memory: 1, Pin: "pool-1"}}, []Action{StartMove{"a", "pool-1", "it is pinned to pool-1"}}, 2},
		{"a drained host gives away", func(p *Pool) { p.Drain = []string{"pool-0"} }, two, []Profile{here("a", "pool-0"), here("b", "pool-1")}, []Action{StartMove{"a", "pool-1", "host pool-0 is drained"}}, 2},
		{"data that is not there does not move", func(p *Pool) { p.Drain = []string{"pool-0"} }, two, []Profile{{Name: "a", Owner: "pool-0", Memory: 1}}, nil, 2},
		{"a lost host's profiles stay its own", nil, []Host{two[0], {Name: "pool-1", Ordinal: 1, WhyUnusable: "node gone"}}, []Profile{here("a", "pool-1")}, []Action{MarkUnreachable{"a", HostLost, "host pool-1: node gone"}}, 2},
		{"it is told once", nil, []Host{two[0], {Name: "pool-1", Ordinal: 1, WhyUnusable: "node gone"}}, []Profile{{Name: "a", Owner: "pool-1", Lost: HostLost}}, nil, 2},
		{"it is told that it is back", nil, two, []Profile{{Name: "a", Owner: "pool-1", Installed: true, Memory: 100, Lost: HostLost}}, []Action{MarkReachable{"a"}}, 2},
		{"a host without a pod is lost", nil, two, []Profile{here("a", "pool-5")}, []Action{MarkUnreachable{"a", HostLost, "host pool-5: its pod does not exist"}}, 6},
		{"a host that no pool can have is not made", nil, two, []Profile{here("a", "pool-2000000000")}, []Action{MarkUnreachable{"a", HostLost, "host pool-2000000000: its pod does not exist"}}, 2},
		{"one whose pod is made again restarts", nil, two[:1], []Profile{here("a", "pool-1")}, []Action{MarkUnreachable{"a", HostRestarts, "host pool-1: its pod does not exist"}}, 2},
		{"one that restarts for too long is lost", nil, two[:1], []Profile{{Name: "a", Owner: "pool-1", Lost: HostRestarts, Overdue: true}}, []Action{MarkUnreachable{"a", HostLost, "host pool-1: its pod does not exist"}}, 2},
		{"one that this controller has not heard of is not told to be back", nil, []Host{two[0], {Name: "pool-1", Ordinal: 1, Ready: true, Updated: true, NeverSeen: true}}, []Profile{{Name: "a", Owner: "pool-1", Lost: HostLost}}, nil, 2},
		{"one that ends and still answers reports itself", nil, []Host{two[0], {Name: "pool-1", Ordinal: 1, WhyUnusable: "ends", Replacing: true, Serving: true}}, []Profile{here("a", "pool-1")}, nil, 2},
		{"a profile whose move has failed waits", func(p *Pool) { p.Drain = []string{"pool-0"} }, two, []Profile{{Name: "a", Owner: "pool-0", Installed: true, LastMove: LastMove{"pool-1", true}}}, nil, 2},
		{"and moves later", func(p *Pool) { p.Drain = []string{"pool-0"} }, two, []Profile{{Name: "a", Owner: "pool-0", Installed: true, LastMove: LastMove{"pool-1", false}}}, []Action{StartMove{"a", "pool-1", "host pool-0 is drained"}}, 2},
		{"and to another host if there is one", func(p *Pool) { p.Drain, p.Replicas = []string{"pool-0"}, 3 }, hostsOf(3), []Profile{
			{Name: "a", Owner: "pool-0", Installed: true, LastMove: LastMove{"pool-1", false}}, here("b", "pool-1"), here("c", "pool-2"), here("d", "pool-2"),
		}, []Action{StartMove{"a", "pool-2", "host pool-0 is drained"}}, 3},
		{"a move to a lost host ends", nil, []Host{two[0], {Name: "pool-1", Ordinal: 1, WhyUnusable: "node gone"}}, []Profile{{Name: "a", Owner: "pool-0", Installed: true, MoveTarget: "pool-1"}}, []Action{CancelMove{"a", "host pool-1 can't take it"}}, 2},
		{"the last host is replaced first, alone", nil, withOldImage(two), nil, []Action{Replace{"pool-1"}}, 2},
		{"none while one is away", nil, []Host{withOldImage(two)[0], {Name: "pool-1", Ordinal: 1, Replacing: true}}, nil, nil, 2},
		{"as many as may be away are replaced", func(p *Pool) { p.MaxUnavailable, p.Replicas = 2, 4 }, withOldImage(hostsOf(4)), nil, []Action{Replace{"pool-3"}, Replace{"pool-2"}}, 4},
		{"and no more with one that is away", func(p *Pool) { p.MaxUnavailable, p.Replicas = 2, 4 }, append(withOldImage(hostsOf(3)), Host{Name: "pool-3", Ordinal: 3, Updated: true, WhyUnusable: "node gone"}), nil, []Action{Replace{"pool-2"}}, 4},
		{"hosts are added for memory that waits", nil, two, []Profile{{Name: "a", Memory: 900}, {Name: "b", Memory: 900}, {Name: "c", Memory: 900}, {Name: "d", Memory: 900}}, []Action{
			Assign{"a", "pool-0"}, Assign{"b", "pool-1"}, MarkPending{"c", "no host has room for its memory"}, MarkPending{"d", "no host has room for its memory"},
		}, 4},
		{"at most as many as the pool may have", func(p *Pool) { p.Max = 2 }, two, []Profile{here("a", "pool-0"), here("b", "pool-1"), {Name: "c", Memory: 900}}, []Action{MarkPending{"c", "no host has room for its memory"}}, 2},
		{"and none for one that fits on no host", nil, two, []Profile{{Name: "a", Memory: 5000}}, []Action{MarkPending{"a", "not even an empty host has room for its memory, 0 MiB"}}, 2},
		{"or that is to leave a drained host", func(p *Pool) { p.Drain = []string{"pool-0"} }, two, []Profile{{Name: "a", Owner: "pool-0", Installed: true, Memory: 5000}}, nil, 2},
		{"no host is replaced in a move", nil, withOldImage(two), []Profile{{Name: "a", Owner: "pool-0", Installed: true, MoveTarget: "pool-1"}}, nil, 2},
		{"but in one of a profile whose last move has failed", nil, withOldImage(two), []Profile{{Name: "a", Owner: "pool-0", Installed: true, MoveTarget: "pool-1", LastMove: LastMove{"pool-1", false}}}, []Action{Replace{"pool-1"}}, 2},
		{"a host that begins counts", func(p *Pool) { p.Replicas = 3 }, append(slices.Clone(two), Host{Name: "pool-2", Ordinal: 2, Replacing: true}), []Profile{
			here("a", "pool-0"), here("b", "pool-1"), {Name: "c", Memory: 900},
		}, []Action{MarkPending{"c", "no host has room for its memory"}}, 3},
	} {
		pool := poolOf(2)
		if c.pool != nil {
			c.pool(&pool)
		}
		plan := Decide(pool, handled(c.profiles), c.hosts, noon)
		if !slices.Equal(plan.Actions, c.want) || plan.Replicas != c.replicas {
			t.Errorf("%s:\ngot  %#v, %d hosts\nwant %#v, %d hosts", c.name, plan.Actions, plan.Replicas, c.want, c.replicas)
		}
	}
}

func withOldImage(hosts []Host) []Host {
	hosts = slices.Clone(hosts)
	for i := range hosts {
		hosts[i].Updated = false
	}
	return hosts
}

// handled returns profiles whose spec.recover was handled, or is empty.
func handled(profiles []Profile) []Profile {
	profiles = slices.Clone(profiles)
	for i := range profiles {
		profiles[i].Handled = true
	}
	return profiles
}

// TestOnlyALostHostIsGivenUpAndOnce checks that spec.recover gives up a host with its data only if the host is lost,
// and only once. A host that restarts must be kept.
func TestOnlyALostHostIsGivenUpAndOnce(t *testing.T) {
	fine := Host{Name: "pool-1", Ordinal: 1, Ready: true, Updated: true}
	gone := Host{Name: "pool-1", Ordinal: 1, WhyUnusable: "node gone"}
	starts := Host{Name: "pool-1", Ordinal: 1, WhyUnusable: "it starts", Replacing: true}
	ends := Host{Name: "pool-1", Ordinal: 1, WhyUnusable: "it ends", Replacing: true, Serving: true}
	lost := MarkUnreachable{"a", HostLost, "host pool-1: node gone"}
	up := GiveUp{"a", "pool-1"}
	for _, c := range []struct {
		name   string
		host   Host
		change func(*Profile)
		want   []Action
	}{
		{"a lost host is given up", gone, func(p *Profile) { p.Lost = HostLost }, []Action{up}},
		{"and once", gone, func(p *Profile) { p.Lost, p.Handled = HostLost, true }, nil},
		{"not before the loss is told", gone, func(*Profile) {}, []Action{lost}},
		{"a lost host whose new pod waits for its volume is", starts, func(p *Profile) { p.Lost = HostLost }, []Action{up}},
		{"one that restarts is not", starts, func(p *Profile) { p.Lost = HostRestarts }, nil},
		{"one that ends is not", ends, func(p *Profile) { p.Present = true }, nil},
		{"one whose container runs again is not", ends, func(p *Profile) { p.Lost = HostLost }, nil},
		{"one that is back is not", fine, func(p *Profile) { p.Lost = HostLost }, []Action{MarkReachable{"a"}}},
		{"one that is back without the data is", fine, func(p *Profile) { p.Missing = true }, []Action{up}},
		{"one that restarts with it is not", starts, func(p *Profile) { p.Missing = true }, []Action{MarkUnreachable{"a", HostRestarts, "host pool-1: it starts"}}},
		{"one with the data is never", fine, func(p *Profile) { p.Present = true }, []Action{HandleRecovery{"a", "spec.recover gives up host pool-1, which is not lost"}}},
		{"another host is not", gone, func(p *Profile) { p.LostHost = "pool-0" }, []Action{HandleRecovery{"a", "spec.recover gives up host pool-0, and the data is on host pool-1"}}},
		{"it can be set again once it was removed", gone, func(p *Profile) { p.Lost, p.LostHost = HostLost, "" }, []Action{HandleRecovery{"a", ""}}},
		{"it waits while there is no host", fine, func(p *Profile) { p.Owner = "" }, []Action{Assign{"a", "pool-1"}}},
	} {
		p := Profile{Name: "a", Owner: "pool-1", Installed: true, Memory: 100, LostHost: "pool-1"}
		c.change(&p)
		if plan := Decide(poolOf(2), []Profile{p}, []Host{c.host}, noon); !slices.Equal(plan.Actions, c.want) {
			t.Errorf("%s:\ngot  %#v\nwant %#v", c.name, plan.Actions, c.want)
		}
	}
}

// TestAPodOfItsOwn checks the actions of the controller on profiles that should have their own
// pods, or have one.
func TestAPodOfItsOwn(t *testing.T) {
	two := hostsOf(2)
	pod := Host{Name: "pool-a-0", OnlyProfile: "a", Ready: true, Updated: true}
	others := Host{Name: "pool-a-0", OnlyProfile: "victim", Ready: true, Updated: true}
	with := func(h Host) []Host { return append(slices.Clone(two), h) }
	a := func(change func(*Profile)) Profile {
		p := Profile{Name: "a", Pod: "pool-a-0", OwnPod: true, Memory: 300}
		change(&p)
		return p
	}
	on := func(host string) func(*Profile) { return func(p *Profile) { p.Owner, p.Installed = host, true } }
	b := Profile{Name: "b", Pod: "pool-b-0", Memory: 900}
	for _, c := range []struct {
		name     string
		hosts    []Host
		profiles []Profile
		want     []Action
		alone    bool // Whether profile a has its own pod.
	}{
		{"it waits for its pod, and for no room", two, []Profile{a(func(*Profile) {})}, []Action{MarkPending{"a", "waits for its pod pool-a-0: it does not exist yet"}}, true},
		{"it says why its pod is not made", two, []Profile{a(func(p *Profile) { p.Refused = "exceeded quota" })}, []Action{MarkPending{"a", "waits for its pod pool-a-0: exceeded quota"}}, true},
		{"it says why its pod does not begin", with(Host{Name: "pool-a-0", OnlyProfile: "a", WhyUnusable: "too big", Replacing: true}), []Profile{a(func(*Profile) {})}, []Action{MarkPending{"a", "waits for its pod pool-a-0: too big"}}, true},
		{"it begins in its pod", with(pod), []Profile{a(func(*Profile) {})}, []Action{Assign{"a", "pool-a-0"}}, true},
		{"it begins in no pod of another one that has the same name", with(others), []Profile{a(func(*Profile) {})}, []Action{MarkPending{"a", "waits for its pod pool-a-0: it does not exist yet"}}, true},
		{"nor does it move there", with(others), []Profile{a(on("pool-0"))}, nil, true},
		{"no other one does", []Host{pod}, []Profile{b}, []Action{MarkPending{"b", "no host has room for its memory"}}, false},
		{"nor by a pin", with(pod), []Profile{{Name: "b", Pod: "pool-b-0", Pin: "pool-a-0"}}, []Action{MarkPending{"b", "waits for host pool-a-0, which it is pinned to"}}, false},
		{"its host keeps it until its pod is on", two, []Profile{a(on("pool-0"))}, nil, true},
		{"it moves to its pod", with(pod), []Profile{a(on("pool-0"))}, []Action{StartMove{"a", "pool-a-0", "it gets a pod of its own"}}, true},
		{"it stays there", with(pod), []Profile{a(on("pool-a-0"))}, nil, true},
		{"it moves back", with(pod), []Profile{a(func(p *Profile) { on("pool-a-0")(p); p.OwnPod = false })}, []Action{StartMove{"a", "pool-0", "it is to be packed"}}, true},
		{"it moves back to a pin", with(pod), []Profile{a(func(p *Profile) { on("pool-a-0")(p); p.OwnPod, p.Pin = false, "pool-1" })}, []Action{StartMove{"a", "pool-1", "it is pinned to pool-1"}}, true},
		{"its pod stays until the data is on the host", with(pod), []Profile{a(func(p *Profile) { p.Owner, p.OwnPod = "pool-0", false })}, nil, true},
		{"then it goes", with(pod), []Profile{a(func(p *Profile) { on("pool-0")(p); p.OwnPod = false })}, nil, false},
		{"a deleted one keeps its pod until it has ended", with(pod), []Profile{a(func(p *Profile) { on("pool-a-0")(p); p.Deleting = true })}, nil, true},
		{"a deleted one without data gets none", two, []Profile{a(func(p *Profile) { p.Deleting = true })}, nil, false},
		{"a move to its pod ends with its placement", with(pod), []Profile{a(func(p *Profile) { on("pool-0")(p); p.OwnPod, p.MoveTarget = false, "pool-a-0" })}, []Action{CancelMove{"a", "host pool-a-0 can't take it"}}, true},
		{"a move to a host too", with(pod), []Profile{a(func(p *Profile) { on("pool-a-0")(p); p.MoveTarget = "pool-0" })}, []Action{CancelMove{"a", "host pool-0 can't take it"}}, true},
		{"a lost pod is told", with(Host{Name: "pool-a-0", OnlyProfile: "a", WhyUnusable: "node gone"}), []Profile{a(on("pool-a-0"))}, []Action{MarkUnreachable{"a", HostLost, "host pool-a-0: node gone"}}, true},
		{"its pod gets the new image, and waits for no host", append(withOldImage(two), withOldImage([]Host{pod})...), []Profile{a(on("pool-a-0"))}, []Action{Replace{"pool-1"}, Replace{"pool-a-0"}}, true},
		{"a host waits for no pod of one profile", append(withOldImage(two), Host{Name: "pool-a-0", OnlyProfile: "a", WhyUnusable: "it is pending", Replacing: true, Updated: true}), nil, []Action{Replace{"pool-1"}}, false},
	} {
		pool := poolOf(2)
		pool.Max = 2
		plan := Decide(pool, handled(c.profiles), c.hosts, noon)
		if !slices.Equal(plan.Actions, c.want) || plan.Replicas != 2 || slices.Contains(plan.SinglePods, "a") != c.alone {
			t.Errorf("%s:\ngot  %#v, %d hosts, pods for %q\nwant %#v", c.name, plan.Actions, plan.Replicas, plan.SinglePods, c.want)
		}
	}
	// A pod of one profile must not count among the hosts of the pool.
	pool := poolOf(1)
	pool.SpareSince = noon
	if p := Decide(pool, handled([]Profile{a(on("pool-a-0"))}), append(hostsOf(1), pod), noon.Add(spareDelay)); p.Replicas != 1 || p.Leaving != "" || !p.SpareSince.IsZero() {
		t.Errorf("%+v", p)
	}
}

// TestAnImageThatDoesNotStartIsRolledBack checks that a host whose image does not start gets the next image. The
// controller must not wait for the host.
func TestAnImageThatDoesNotStartIsRolledBack(t *testing.T) {
	hosts := withOldImage(hostsOf(3))
	hosts[2].WhyUnusable, hosts[2].Ready, hosts[2].Broken = "its container agents waits: ImagePullBackOff", false, true
	plan := Decide(poolOf(3), nil, hosts, noon)
	if !slices.Equal(plan.Actions, []Action{Replace{"pool-2"}}) || plan.Doing != "replaces hosts for the new image, 3 to go" {
		t.Errorf("%+v", plan)
	}
	hosts[2].Updated, hosts[2].Replacing = true, true // The controller sets these fields when the rollout begins with the next host.
	if plan = Decide(poolOf(3), nil, hosts, noon); len(plan.Actions) > 0 {
		t.Errorf("while it begins: %+v", plan)
	}
}

// TestASpareHostIsDrainedBeforeItGoes checks all steps by which a pool that is too large by one host gets smaller.
func TestASpareHostIsDrainedBeforeItGoes(t *testing.T) {
	pool := poolOf(3)
	profiles := []Profile{{Name: "a", Owner: "pool-2", Installed: true, Memory: 100, Handled: true}}
	p := Decide(pool, profiles, hostsOf(3), noon)
	if p.SpareSince != noon || p.Replicas != 3 || p.Leaving != "" {
		t.Fatalf("at once: %+v", p)
	}
	pool.SpareSince = noon
	p = Decide(pool, profiles, hostsOf(3), noon.Add(spareDelay))
	if p.Leaving != "pool-2" || p.Replicas != 3 {
		t.Fatalf("after a while: %+v", p)
	}
	pool.Leaving = p.Leaving
	p = Decide(pool, profiles, hostsOf(3), noon.Add(spareDelay))
	if p.Replicas != 3 || len(p.Actions) != 1 || p.Actions[0].(StartMove).Reason != "host pool-2 is spare" {
		t.Fatalf("with a profile: %+v", p)
	}
	profiles[0].Owner = "pool-0"
	if p = Decide(pool, profiles, hostsOf(3), noon.Add(spareDelay)); p.Replicas != 2 || p.Leaving != "" {
		t.Fatalf("empty: %+v", p)
	}
}

// TestASpareHostStaysIfAProfileOfItFitsNowhereElse checks that the last host is not drained if its
// profile fits on no other host, even if the other hosts together have enough memory.
func TestASpareHostStaysIfAProfileOfItFitsNowhereElse(t *testing.T) {
	pool, hosts := poolOf(3), hostsOf(3)
	var profiles []Profile
	for i, host := range []string{"pool-0", "pool-0", "pool-1", "pool-1", "pool-2"} {
		profiles = append(profiles, Profile{Name: fmt.Sprint("p", i), Owner: host, Installed: true, Present: true, Memory: 240})
	}
	profiles[4].Memory = 530
	for at := noon; at.Before(noon.Add(time.Hour)); at = at.Add(time.Minute) {
		plan := Decide(pool, handled(profiles), hosts, at)
		if plan.Replicas != 3 || plan.Leaving != "" || len(plan.Actions) != 0 {
			t.Fatalf("after %s: %+v", at.Sub(noon), plan)
		}
		pool.Replicas, pool.SpareSince, pool.Leaving = plan.Replicas, plan.SpareSince, plan.Leaving
	}
	pool.Leaving = "pool-2" // Set at a time when the profile fitted on another host.
	if plan := Decide(pool, handled(profiles), hosts, noon); plan.Replicas != 3 || plan.Leaving != "" || len(plan.Actions) != 0 {
		t.Errorf("a host that was leaving: %+v", plan)
	}
	profiles[4].Memory = 400
	pool.Leaving, pool.SpareSince = "", noon
	if plan := Decide(pool, handled(profiles), hosts, noon.Add(time.Hour)); plan.Leaving != "pool-2" {
		t.Errorf("a smaller one: %+v", plan)
	}
}

// TestASpareHostStaysSpareWhileItsLastProfileBeginsToMove checks that the memory of a profile that
// begins to move counts only once. Otherwise the move would be cancelled.
func TestASpareHostStaysSpareWhileItsLastProfileBeginsToMove(t *testing.T) {
	pool := poolOf(6)
	pool.Leaving, pool.SpareSince = "pool-5", noon
	var profiles []Profile
	for i, memory := range []int64{450, 520, 520, 520, 520, 500} {
		profiles = append(profiles, Profile{Name: fmt.Sprint("p", i), Owner: fmt.Sprintf("pool-%d", i), Installed: true, Present: true, Memory: memory})
	}
	plan := Decide(pool, handled(profiles), hostsOf(6), noon.Add(time.Hour))
	if len(plan.Actions) != 1 || plan.Actions[0] != (StartMove{"p5", "pool-0", "host pool-5 is spare"}) || plan.Leaving != "pool-5" {
		t.Errorf("%+v", plan)
	}
}

// TestHostsBeyondTheMostAreDrainedOneByOne checks that hosts are drained before they are removed when hosts.max is
// lowered by two. Otherwise their profiles would be lost.
func TestHostsBeyondTheMostAreDrainedOneByOne(t *testing.T) {
	pool := poolOf(4)
	pool.Max = 2
	hosts := withOldImage(hostsOf(4)) // The limit must also hold during the rollout of an image.
	hosts[1].Ready = false
	profiles := handled([]Profile{
		{Name: "a", Owner: "pool-3", Installed: true, Memory: 700},
		{Name: "b", Owner: "pool-2", Installed: true, Memory: 100},
		{Name: "waits", Memory: 5000, Pending: "not even an empty host has room for its memory, 0 MiB"},
	})
	round := func(what string, replicas int, leaving, doing string, want ...Action) {
		t.Helper()
		p := Decide(pool, profiles, hosts, noon)
		p.Actions = slices.DeleteFunc(p.Actions, func(a Action) bool { _, is := a.(Replace); return is })
		if p.Replicas != replicas || p.Leaving != leaving || !strings.HasPrefix(p.Doing, doing) || !slices.Equal(p.Actions, want) {
			t.Fatalf("%s: %+v", what, p)
		}
		pool.Leaving, pool.Replicas = p.Leaving, p.Replicas
		hosts = hosts[:min(len(hosts), p.Replicas)]
	}
	round("the last one leaves", 4, "pool-3", "replaces")
	hosts = hostsOf(4)
	hosts[1].Ready = false
	round("its profile moves", 4, "pool-3", "moves a to pool-0", StartMove{"a", "pool-0", "host pool-3 is to go: hosts.max is 2"})
	profiles[0].MoveTarget = "pool-0"
	round("it waits for the move", 4, "pool-3", "moves a to pool-0")
	profiles[0].Owner, profiles[0].MoveTarget = "pool-0", ""
	round("it goes", 3, "", "drains pool-3: hosts.max is 2")
	round("the next one leaves", 3, "pool-2", "drains pool-2: hosts.max is 2")
	profiles[1].Pin = "pool-2"
	round("a pin keeps it", 3, "pool-2", "can't drain pool-2: hosts.max is 2; b is pinned to it")
	profiles[1].Pin, profiles[1].Memory = "", 400
	round("it needs room", 3, "pool-2", "drains pool-2: hosts.max is 2; the other hosts have no room for all profiles")
	hosts[2].WhyUnusable = "node gone"
	round("a lost one stays", 3, "pool-2", "drains pool-2: hosts.max is 2", MarkUnreachable{"b", HostLost, "host pool-2: node gone"})
	profiles[1].Owner = "pool-1"
	hosts = hosts[:2] // The host's pod must not be created again.
	round("it goes without a pod", 2, "", "drains pool-2: hosts.max is 2")
	round("no other one goes", 2, "", "")
	pool.Max, profiles[2].Memory, profiles[2].Pending = 3, 900, "no host has room for its memory"
	profiles = append(profiles, Profile{Name: "waits too", Memory: 900, Pending: profiles[2].Pending, Handled: true})
	round("another one comes", 3, "", "")
}

// TestTenThousandProfilesArePlacedInARound checks that a round with ten thousand profiles takes little time.
func TestTenThousandProfilesArePlacedInARound(t *testing.T) {
	var profiles []Profile
	for i := range 10000 {
		profiles = append(profiles, Profile{Name: fmt.Sprint("p", i), Memory: 5})
	}
	began := time.Now()
	p := Decide(poolOf(50), profiles, hostsOf(50), noon)
	took := time.Since(began)
	if len(p.Actions) != 10000 || took > 5*time.Second {
		t.Errorf("%d actions in %s", len(p.Actions), took)
	}
	t.Log(took)
}

// BenchmarkARound measures a round with the numbers of profiles that docs/explanation/fleet.md names: all new, and all
// at rest.
func BenchmarkARound(b *testing.B) {
	for _, n := range []int{120, 10_000, 100_000} {
		pool := poolOf(max(n/100, 1))
		pool.HostMemory = 100 * 300
		hosts := hostsOf(pool.Replicas)
		for i := range hosts {
			hosts[i].Zone = fmt.Sprint("zone", i%3)
		}
		profiles := make([]Profile, n)
		for i := range profiles {
			profiles[i] = Profile{Name: fmt.Sprintf("p%06d", i), Memory: 300, Handled: true}
		}
		b.Run(fmt.Sprintf("new/%d", n), func(b *testing.B) {
			for b.Loop() {
				if actions := len(Decide(pool, profiles, hosts, noon).Actions); actions != n {
					b.Fatalf("%d actions", actions)
				}
			}
		})
		rest := slices.Clone(profiles)
		for i := range rest {
			rest[i].Owner, rest[i].Installed = hosts[i/100%len(hosts)].Name, true
		}
		b.Run(fmt.Sprintf("rest/%d", n), func(b *testing.B) {
			for b.Loop() {
				if actions := Decide(pool, rest, hosts, noon).Actions; len(actions) != 0 {
					b.Fatalf("%d actions, the first %v", len(actions), actions[0])
				}
			}
		})
	}
}

// TestProfilesThatCantMoveHoldNoDrain checks that a drain continues although four profiles of the
// host can't be moved.
func TestProfilesThatCantMoveHoldNoDrain(t *testing.T) {
	pool, hosts := poolOf(2), hostsOf(2)
	pool.Drain = []string{"pool-0"}
	var profiles []Profile
	for i := range 12 {
		profiles = append(profiles, Profile{Name: fmt.Sprintf("p%02d", i), Owner: "pool-0", Installed: true, Memory: 10})
	}
	moved := func(last LastMove) (failed, others int) {
		for i := range 8 {
			profiles[i].LastMove = last
		}
		plan := Decide(pool, handled(profiles), hosts, noon)
		for _, a := range plan.Actions {
			if move, is := a.(StartMove); is && move.Profile < "p08" {
				failed++
			} else if is {
				others++
			}
		}
		return failed, others
	}
	if failed, others := moved(LastMove{"pool-1", false}); failed != maxFailedMoves || others != maxMoves-maxFailedMoves {
		t.Errorf("%d profiles move again, and %d others", failed, others)
	}
	if failed, others := moved(LastMove{"pool-1", true}); failed != 0 || others != maxMoves {
		t.Errorf("%d profiles that wait move, and %d others", failed, others)
	}
	plan := Decide(pool, handled(profiles[:8]), hosts, noon)
	if want := "waits until it moves p00 again, whose last move has failed"; plan.Doing != want {
		t.Errorf("the pool %q", plan.Doing)
	}
	last := time.Duration(0)
	for n := range int32(100) {
		if d := MoveDelay(n); d < last || d < 5*time.Minute || d > 4*time.Hour {
			t.Errorf("after %d failures the next move waits %v, and before %v", n, d, last)
		}
		last = MoveDelay(n)
	}
}

// TestMovesThatNeverEndHoldNoDrain checks that a host that hangs during a drain delays neither
// other profiles nor the rollout of other hosts.
func TestMovesThatNeverEndHoldNoDrain(t *testing.T) {
	for what, change := range map[string]func(*Profile, *Host){
		"goes on":          func(*Profile, *Host) {},
		"restarts":         func(_ *Profile, h *Host) { h.WhyUnusable, h.Replacing, h.Ready = "it restarts", true, false },
		"hangs":            func(p *Profile, _ *Host) { p.MoveStuck = true },
		"its host is lost": func(_ *Profile, h *Host) { h.WhyUnusable, h.Ready = "node gone", false },
	} {
		pool, hosts := poolOf(4), hostsOf(4)
		pool.Drain, pool.MaxUnavailable = []string{"pool-1"}, 4
		profiles := []Profile{{Name: "drained", Owner: "pool-1", Installed: true, Memory: 1}}
		for i := range maxMoves {
			p := Profile{Name: fmt.Sprint("p", i), Owner: "pool-2", MoveTarget: "pool-3", Installed: true, Memory: 1}
			change(&p, &hosts[2])
			profiles = append(profiles, p)
		}
		moves := slices.ContainsFunc(Decide(pool, handled(profiles), hosts, noon).Actions, func(a Action) bool { _, is := a.(StartMove); return is })
		hosts[3].Updated = false
		replaced := slices.Contains(Decide(pool, handled(profiles), hosts, noon).Actions, Action(Replace{"pool-3"}))
		if waits := what == "goes on" || what == "restarts"; moves == waits || replaced == waits {
			t.Errorf("while a move %s, another one begins: %t; the other host gets its image: %t", what, moves, replaced)
		}
	}
}

// TestAHostThatLiesAboutItsReceiptEndsNoProfile checks that a false receipt does not keep a gateway
// down for ever. The old host ends the move after a time without transfer.
func TestAHostThatLiesAboutItsReceiptEndsNoProfile(t *testing.T) {
	o := &Object{UID: "u", Owner: "me", Assignment: 1, Installed: 1, MoveTarget: "other", Offer: "n1", Wanted: true}
	for received, want := range map[string]Step{"": CallOff, "forged": CallOff, "n1": CallOff} {
		o.Received = received
		if got := Next("me", o, LocalState{Live: true, Offered: "n1", Stalled: true}); got != want {
			t.Errorf("received %q: %v", received, got)
		}
	}
	o.Received = "n1"
	if got := Next("me", o, LocalState{Live: true, Offered: "n1", Sent: "n1", Stalled: true}); got != SetAside {
		t.Errorf("the right receipt: %v", got)
	}
}
