package proc

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxScanAge is the maximum age of a scan for questions that do not concern the newest processes.
const maxScanAge = 20 * time.Millisecond

// identity distinguishes a process from a later process with the same PID, by its start time.
type identity struct {
	pid   int
	start uint64
}

// membership is the result of one scan: the run of each process.
type membership struct {
	scan            int                 // number of the scan behind the fields below
	runsOfProcesses map[identity]uint64 // run of each living process, except main processes
	alive           map[uint64][]stat   // living processes of each run, except its main process
	orphanRuns      map[identity]uint64 // run of each orphan: 0 for none, or unknownRun; found out once for each process
	deadOrphans     map[identity]uint64 // run of each dead orphan that is not reaped yet: 0 for none, or unknownRun
	// number of further processes that may belong to each run: new dead orphans, and living orphans with an unread environment
	possibleMembers map[uint64]int
	unreadEnvirons  map[identity]time.Time // living orphans with an unread environment, and when a scan first found them
	marksRead       int                    // number of dead orphans (zombies) whose mark this scan has read; at most maxExitedMarks
	unknownOrphans  []stat                 // living orphans whose run is unknown, see hidesMark
	youngestMember  map[uint64]stat        // youngest process of each run, dead or alive, except its main process
}

// environLimit is how long an orphan with an unread environment counts as a possible member of each run of its user.
const environLimit = time.Second

// unknownRun stands for the run of an orphan that may belong to any run: its mark can't be read, or the orphan has changed it
// (hidesMark).
const unknownRun = ^uint64(0)

// assignRuns finds the run of each process in the last scan. A process belongs to a run in each of these cases:
//
//   - It is the main process of the run, or its parent belongs to the run.
//   - An earlier scan has found it in the run.
//   - It is in the process group or session of the main process. The number can't belong to a new group, because a known
//     process is still in the group.
//   - It is an orphan with the mark or the tag of the run, and its user is root or the user of the run.
func (t *Table) assignRuns() {
	all := t.procfs.stats
	if t.members.scan == t.procfs.scanCount {
		return
	}
	t.environWaitTime = 0
	self := os.Getpid()
	owner := make(map[int]uint64, len(all))
	parent := make(map[int]int, len(all))
	groups, sessions := make(map[int]uint64), make(map[int]uint64)
	hold := func(r *run) {
		groups[r.group] = r.id
		if r.session {
			sessions[r.group] = r.id
		}
	}
	for _, p := range all {
		parent[p.PID] = p.Parent
		id, main := t.owned[p.PID]
		if !main {
			id = t.members.runsOfProcesses[identity{p.PID, p.Start}]
		}
		if r := t.runs[id]; r != nil {
			owner[p.PID] = id
			if main || p.Group == r.group || p.Session == r.group {
				hold(r)
			}
		}
	}
	origins := make(map[identity]uint64)
	var strays []stat
	unread := make(map[identity]time.Time)
	var undecided []int // living orphans whose environment may soon show their run
	for _, p := range all {
		if _, known := owner[p.PID]; known || p.PID == self || p.Dead() {
			continue
		}
		if id := groups[p.Group]; id != 0 {
			owner[p.PID] = id
		} else if id := sessions[p.Session]; id != 0 {
			owner[p.PID] = id
		} else if p.Parent == self {
			who := identity{p.PID, p.Start}
			id, known := t.runOfOrphanCached(who)
			if known {
				origins[who] = id
			} else {
				unread[who] = cmp.Or(t.members.unreadEnvirons[who], time.Now())
				if time.Since(unread[who]) < environLimit {
					undecided = append(undecided, p.PID)
				}
			}
			if t.runs[id] != nil {
				owner[p.PID] = id
			} else if id == unknownRun {
				strays = append(strays, p)
			}
		}
	}
	before := t.members
	t.members = membership{
		scan: t.procfs.scanCount, runsOfProcesses: make(map[identity]uint64), alive: make(map[uint64][]stat), orphanRuns: origins, unknownOrphans: strays, unreadEnvirons: unread,
		deadOrphans: make(map[identity]uint64), possibleMembers: make(map[uint64]int), youngestMember: make(map[uint64]stat),
	}
	for _, pid := range undecided {
		m, _ := t.procfs.mark(pid)
		for id, r := range t.runs {
			if m.ProvesMembership(r.user) {
				t.members.possibleMembers[id]++
			}
		}
	}
	for _, p := range slices.Backward(all) { // the kernel usually gives out PIDs in ascending order, so begin with the youngest process
		if p.Dead() && p.Parent == self {
			t.assignDeadOrphan(p, &before, groups, sessions)
		}
	}
	for _, p := range all {
		if p.Dead() || p.PID == self {
			continue
		}
		id := runOfAncestor(p.PID, self, owner, parent)
		if _, main := t.owned[p.PID]; id != 0 && !main {
			t.members.runsOfProcesses[identity{p.PID, p.Start}] = id
			t.members.alive[id] = append(t.members.alive[id], p)
			t.recordYoungest(id, p)
		}
	}
}

// maxExitedMarks is how many marks of dead orphans one scan reads. Further dead orphans count as unknownRun, unless their
// process group or session shows their run.
const maxExitedMarks = 256

// assignDeadOrphan finds the run of a dead orphan. A process that forks and ends at once may be dead in every scan. But at least
// one scan shows it, because only hinit reaps it, and never during a scan. So if a scan shows no process of a run, neither alive
// nor newly dead, the whole run has ended.
func (t *Table) assignDeadOrphan(p stat, before *membership, groups, sessions map[int]uint64) {
	if _, main := t.owned[p.PID]; main {
		return
	}
	who := identity{p.PID, p.Start}
	id, seen := before.deadOrphans[who]
	if !seen {
		id = before.runsOfProcesses[who]
		switch {
		case id != 0:
		case t.members.marksRead == maxExitedMarks:
			id = unknownRun
		default:
			t.members.marksRead++
			id = t.runOfDeadOrphan(p.PID)
		}
		if id == unknownRun || id == 0 {
			id = cmp.Or(groups[p.Group], sessions[p.Session], id)
		}
		t.members.possibleMembers[id]++
	}
	t.members.deadOrphans[who] = id
	t.recordYoungest(id, p)
}

// recordYoungest updates the youngest process of a run. killForkers begins its search at this process.
func (t *Table) recordYoungest(id uint64, p stat) {
	if last, ok := t.members.youngestMember[id]; !ok || last.Start < p.Start || last.Start == p.Start && last.PID < p.PID {
		t.members.youngestMember[id] = p
	}
}

// runOfAncestor returns the run of the nearest ancestor with a run; the process itself counts too. It stores this run in owner
// for each process on the way. The map parent may contain a cycle, because the processes change during the scan.
func runOfAncestor[ID any](pid, self int, owner map[int]ID, parent map[int]int) (id ID) {
	var way []int
	for len(way) <= len(parent) {
		if found, known := owner[pid]; known {
			id = found
			break
		}
		if pid == self || pid <= 0 {
			break
		}
		way = append(way, pid)
		pid = parent[pid]
	}
	for _, pid := range way {
		owner[pid] = id
	}
	return id
}

// hasLeftover reports whether other processes of a run may be alive after its main process has ended. Call it before the main
// process is reaped. If several main processes have ended, a single scan serves all of them.
func (t *Table) hasLeftover(r *run, several bool) bool {
	dead := func(p stat) bool { return p.PID == r.mainPID && p.Dead() }
	// a scan that shows the main process dead also shows all its descendants
	if time.Since(t.procfs.scannedAt) >= maxScanAge || !slices.ContainsFunc(t.procfs.stats, dead) {
		if !several && !t.hasUnknownChild() {
			return false
		}
		t.procfs.scan()
	}
	for range confirmingScans {
		t.assignRuns()
		if len(t.members.alive[r.id]) > 0 || t.members.possibleMembers[r.id] == 0 {
			break
		}
		t.procfs.scan() // processes have just ended, so the last scan may lack their children
	}
	t.assignRuns()
	return len(t.members.alive[r.id])+t.members.possibleMembers[r.id] > 0
}

// unknownOrphansSince returns the living orphans of unknown run that are not older than the process main. The last scan is
// recent enough, because the end of a main process causes a scan while any orphan is alive.
func (t *Table) unknownOrphansSince(main int) (pids []int) {
	at := slices.IndexFunc(t.procfs.stats, func(p stat) bool { return p.PID == main })
	if at < 0 || t.members.scan != t.procfs.scanCount {
		return nil
	}
	for _, p := range t.members.unknownOrphans {
		if p.Start >= t.procfs.stats[at].Start {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// confirmingScans is how many times hasLeftover repeats a scan that shows newly dead processes of a run but no living one. If
// the last scan still shows newly dead processes, hasLeftover assumes that the run keeps forking.
const confirmingScans = 2

// RecordMembers records which processes belong to a run. The record stays valid after the end of their parents. It scans /proc
// only if the main process may have descendants. Calls in quick succession share one scan.
func (t *Table) RecordMembers(id uint64) {
	if r := t.runs[id]; r != nil && r.mainPID != 0 && t.procfs.isScanDue() && !t.procfs.hasChild(r.mainPID) && !t.hasUnknownChild() {
		t.procfs.scanSkippedAt = time.Now()
		return
	}
	t.procfs.scanWithin(maxScanAge)
	t.assignRuns()
}

// SignalTree signals every living process of a run, and returns their number. 0 means that all have ended. With SIGKILL it
// repeats until a scan finds no new process, so that no forked process escapes.
func (t *Table) SignalTree(id uint64, signal int) int {
	r := t.runs[id]
	if r == nil {
		return 0
	}
	seen, signalled := make(map[identity]bool), 0
	if signal == int(unix.SIGKILL) {
		t.killCgroup(r)
	}
	if r.mainPID != 0 {
		_ = unix.Kill(r.mainPID, syscall.Signal(signal)) // the PID is valid, because the main process is not reaped yet
		signalled++
	}
	t.procfs.scanWithin(maxScanAge)
	for range 8 {
		t.assignRuns()
		before := len(seen)
		for _, p := range t.members.alive[id] {
			if who := (identity{p.PID, p.Start}); !seen[who] {
				seen[who] = true
				if t.SignalNonChild(p, signal) {
					signalled++
				}
				if signal == int(unix.SIGKILL) {
					t.members.deadOrphans[who] = id // a zombie can't fork, so it is no sign of new processes
				}
			}
		}
		if len(seen) == before && t.members.possibleMembers[id] == 0 || signal != int(unix.SIGKILL) {
			break
		}
		if t.members.possibleMembers[id] > 0 && len(t.members.alive[id]) == 0 {
			signalled += t.killForkers(id)
		}
		t.procfs.scan()
	}
	t.assignRuns()
	if len(t.members.alive[id])+t.members.possibleMembers[id] > 0 {
		return max(signalled, 1) // the processes fork and end faster than a scan can see
	}
	return signalled
}

const (
	// killForkersTime is the maximum duration of killForkers. killForkersPause is the pause before it looks for the next
	// process.
	killForkersTime  = 4 * time.Millisecond
	killForkersPause = time.Millisecond
	// killForkersAhead is how many PIDs killForkers tries after the last process. Other programs start processes too, so the
	// PIDs of a run have gaps.
	killForkersAhead = 16
)

// killForkers kills processes that fork and end faster than a scan can see. It finds a child by trying the PIDs after its
// parent's PID. It kills only processes with the mark of the run, and returns their number.
func (t *Table) killForkers(id uint64) (killed int) {
	pid := t.members.youngestMember[id].PID
	begin := time.Now()
	met := begin // when killForkers last found a process
	for {
		for next := pid + 1; next <= pid+killForkersAhead; next++ {
			there, hit := t.killMember(next, id)
			if hit {
				killed++
			}
			if there {
				pid, met = next, time.Now()
				break
			}
		}
		if now := time.Now(); now.Sub(begin) > killForkersTime || now.Sub(met) > killForkersPause {
			return killed
		}
	}
}

// killMember kills process pid if it belongs to run id. exists reports whether any process has this PID.
func (t *Table) killMember(pid int, id uint64) (exists, killed bool) {
	return signalIf(pid, unix.SIGKILL, func() bool {
		return t.runOfDeadOrphan(pid) == id && t.RunOf(pid) == id // both lookups must agree, because another hinit uses the same marks
	})
}

// SignalNonChild signals process p, which is not a child of hinit and may end at any moment. It reports whether the signal was
// sent.
func (t *Table) SignalNonChild(p stat, signal int) bool {
	_, sent := signalIf(p.PID, syscall.Signal(signal), func() bool {
		now, ok := t.procfs.readStat(p.PID)
		return ok && now.Start == p.Start && !now.Dead()
	})
	return sent
}

// signalIf signals process pid if matches returns true. A pidfd keeps the signal from another process that gets the PID after
// the check. exists reports whether any process has this PID.
func signalIf(pid int, signal syscall.Signal, matches func() bool) (exists, sent bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	old := errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) // the kernel is old, or seccomp forbids the call
	switch {
	case err == nil:
		defer unix.Close(fd)
	case !old:
		return !errors.Is(err, unix.ESRCH), false // any error but ESRCH means that pid is a thread
	}
	switch {
	case !matches():
		return !old || unix.Kill(pid, 0) == nil, false
	case old:
		return true, unix.Kill(pid, signal) == nil
	}
	return true, unix.PidfdSendSignal(fd, signal, nil, 0) == nil // every kernel with pidfd_open has this call too
}

// EndedRuns returns the runs among ids that have no living process. A run with dead processes that no scan has seen alive has
// not ended yet, because they may have forked. Ask again after they have been reaped.
func (t *Table) EndedRuns(ids []uint64) []uint64 {
	var gone []uint64
	t.procfs.scan()
	t.assignRuns()
	for _, id := range ids {
		if r := t.runs[id]; r == nil || r.mainPID == 0 && len(t.members.alive[id])+t.members.possibleMembers[id]+t.members.possibleMembers[unknownRun] == 0 {
			gone = append(gone, id)
		}
	}
	return gone
}

// SignalDescendants signals every descendant of hinit. In PID 1 these are all other processes of the namespace (kill(2)).
func (t *Table) SignalDescendants(signal int) {
	self := os.Getpid()
	if self == 1 {
		_ = unix.Kill(-1, syscall.Signal(signal))
		return
	}
	t.procfs.scan()
	owner, parent := map[int]uint64{self: 1, 0: 0, 1: 0}, make(map[int]int)
	for _, p := range t.procfs.stats {
		parent[p.PID] = p.Parent
	}
	for _, p := range t.procfs.stats {
		if p.PID != self && !p.Dead() && runOfAncestor(p.Parent, 0, owner, parent) == 1 {
			t.SignalNonChild(p, signal)
		}
	}
}
