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

// maxAge is the maximum age at which a scan is reused, for questions in which newly forked processes don't matter.
const maxAge = 20 * time.Millisecond

// identity distinguishes a process from a later process with the same PID.
type identity struct {
	pid   int
	start uint64
}

// membership holds the results of one scan: to which run each process belongs.
type membership struct {
	scan            int                    // number of the scan whose results these are
	known           map[identity]uint64    // run numbers of living processes, without main processes
	alive           map[uint64][]stat      // living processes by run number, without the main process
	origins         map[identity]uint64    // run numbers of orphans, 0 for none, or unknownRun; determined once for each process
	deadOrphans     map[identity]uint64    // run numbers of dead orphans that are not reaped yet, 0 for none, or unknownRun
	possibleMembers map[uint64]int         // number of further processes that may belong to each run: dead orphans that are new in this scan, and living ones whose environment is unread
	unread          map[identity]time.Time // living orphans whose environment is not read yet, and when a scan first found them
	marksRead       int                    // number of marks of dead orphans that this scan has read
	unknownOrphans  []stat                 // living orphans whose run is unknown, see hidesMark
	youngestMember  map[uint64]stat        // youngest process of each run, dead or alive, without the main process
}

// environLimit is the time for which an orphan with an unread environment counts as a possible member of each run of its user.
const environLimit = time.Second

// unknownRun stands for the run of an orphan that may belong to any run. Either the orphan is dead and its mark can't be read, or
// it has changed its mark (see hidesMark).
const unknownRun = ^uint64(0)

// assignRuns determines the run of each process in the current scan. A process belongs to a run in each of these cases:
//
//   - It is the run's main process, or its parent belongs to the run.
//   - An earlier scan has assigned it to the run.
//   - It is in the process group or session that the main process made. The number of the group can't have been reused, because a
//     known process is still in it.
//   - It is an orphan with the run's mark (a resource limit) or tag (an environment variable), and runs as root or as the run's
//     user.
func (t *Table) assignRuns() {
	all := t.procfs.stats
	if t.members.scan == t.procfs.scans {
		return
	}
	t.environWaited = 0
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
			id = t.members.known[identity{p.PID, p.Start}]
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
			id, known := t.originOf(who)
			if known {
				origins[who] = id
			} else {
				unread[who] = cmp.Or(t.members.unread[who], time.Now())
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
		scan: t.procfs.scans, known: make(map[identity]uint64), alive: make(map[uint64][]stat), origins: origins, unknownOrphans: strays, unread: unread,
		deadOrphans: make(map[identity]uint64), possibleMembers: make(map[uint64]int), youngestMember: make(map[uint64]stat),
	}
	for _, pid := range undecided {
		m, _ := t.procfs.mark(pid)
		for id, r := range t.runs {
			if r.user == nil || m.ProvesMembership(*r.user) {
				t.members.possibleMembers[id]++ // may belong to this run, because its user is root or the user of the run
			}
		}
	}
	for _, p := range slices.Backward(all) { // the youngest first, as long as PIDs are given in ascending order
		if p.Dead() && p.Parent == self {
			t.assignDead(p, &before, groups, sessions)
		}
	}
	for _, p := range all {
		if p.Dead() || p.PID == self {
			continue
		}
		id := runOfAncestor(p.PID, self, owner, parent)
		if _, main := t.owned[p.PID]; id != 0 && !main {
			t.members.known[identity{p.PID, p.Start}] = id
			t.members.alive[id] = append(t.members.alive[id], p)
			t.recordYoungest(id, p)
		}
	}
}

// maxExitedMarks is the maximum number of dead orphans whose marks one scan reads. The run of any further dead orphan is
// unknownRun, unless its process group or session shows the run.
const maxExitedMarks = 256

// assignDead determines the run of a dead orphan. A process that forks and ends immediately may never be alive in a scan. But a
// scan shows it as dead, because only this process reaps it, and never during a scan. So if a scan shows no process of a run,
// neither alive nor newly dead, all of them have ended.
func (t *Table) assignDead(p stat, before *membership, groups, sessions map[int]uint64) {
	if _, main := t.owned[p.PID]; main {
		return
	}
	who := identity{p.PID, p.Start}
	id, seen := before.deadOrphans[who]
	if !seen {
		id = before.known[who]
		switch {
		case id != 0:
		case t.members.marksRead == maxExitedMarks:
			id = unknownRun
		default:
			t.members.marksRead++
			id = t.runOfDead(p.PID)
		}
		if id == unknownRun || id == 0 {
			id = cmp.Or(groups[p.Group], sessions[p.Session], id)
		}
		t.members.possibleMembers[id]++
	}
	t.members.deadOrphans[who] = id
	t.recordYoungest(id, p)
}

func (t *Table) recordYoungest(id uint64, p stat) {
	if last, ok := t.members.youngestMember[id]; !ok || last.Start < p.Start || last.Start == p.Start && last.PID < p.PID {
		t.members.youngestMember[id] = p
	}
}

// runOfAncestor returns the run of the nearest ancestor that has one; the search begins with the process itself. It stores this
// run in owner for all processes on the way. parent may contain a cycle, because a scan is not atomic.
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

// hasLeftover reports whether other processes of a run are alive after its main process has ended; the main process must not be
// reaped yet. several is true if more than one main process has ended; then one scan serves them all.
func (t *Table) hasLeftover(r *run, several bool) bool {
	if !t.procfs.isSeenDead(r.mainPID) { // a scan that shows the end also shows all processes that the main process had started
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
		t.procfs.scan() // several processes have just ended: the last scan may lack their children
	}
	t.assignRuns()
	return len(t.members.alive[r.id])+t.members.possibleMembers[r.id] > 0
}

// unknownOrphansSince returns the living orphans of unknown run that were not started before the process main. It uses the result of
// the last scan. That result is recent enough: while an orphan is alive, the end of each main process causes a scan.
func (t *Table) unknownOrphansSince(main int) (pids []int) {
	at := slices.IndexFunc(t.procfs.stats, func(p stat) bool { return p.PID == main })
	if at < 0 || t.members.scan != t.procfs.scans {
		return nil
	}
	for _, p := range t.members.unknownOrphans {
		if p.Start >= t.procfs.stats[at].Start {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// confirmingScans is the maximum number of additional scans that hasLeftover makes. It scans again while a scan shows newly
// dead processes of a run but no living one. If the last scan still shows this, new processes must be appearing.
const confirmingScans = 2

// isSeenDead reports whether the last scan is fresh and shows the process as dead.
func (s *scanner) isSeenDead(pid int) bool {
	return time.Since(s.at) < maxAge && slices.ContainsFunc(s.stats, func(p stat) bool { return p.PID == pid && p.Dead() })
}

// RecordMembers records the living processes of a run, so that the table still knows their run after their parents have ended. It
// scans /proc only if the main process may have descendants. Several calls in quick succession share one scan.
func (t *Table) RecordMembers(id uint64) {
	if r := t.runs[id]; r != nil && r.mainPID != 0 && t.procfs.stale() && !t.procfs.hasChild(r.mainPID) && !t.hasUnknownChild() {
		t.procfs.skipped = time.Now()
		return
	}
	t.procfs.scanWithin(maxAge)
	t.assignRuns()
}

// SignalTree signals every living process of a run. With SIGKILL it repeats this until a scan finds no new process, so that a
// process that is forked during the call does not escape. It returns the number of signalled processes; 0 means that all have
// ended.
func (t *Table) SignalTree(id uint64, signal int) int {
	r := t.runs[id]
	if r == nil {
		return 0
	}
	seen, signalled := make(map[identity]bool), 0
	if signal == int(unix.SIGKILL) {
		t.killGroup(r)
	}
	if r.mainPID != 0 {
		_ = unix.Kill(r.mainPID, syscall.Signal(signal)) // the PID is valid, because the process has not been reaped
		signalled++
	}
	t.procfs.scanWithin(maxAge)
	for range 8 {
		t.assignRuns()
		before := len(seen)
		for _, p := range t.members.alive[id] {
			if who := (identity{p.PID, p.Start}); !seen[who] {
				seen[who] = true
				if t.SignalOther(p, signal) {
					signalled++
				}
				if signal == int(unix.SIGKILL) {
					t.members.deadOrphans[who] = id // a zombie can't fork, so its death is no sign of new processes
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
		return max(signalled, 1) // the processes fork and end faster than scans can see
	}
	return signalled
}

const (
	// killForkersTime limits the duration of killForkers. killForkersPause is the time that killForkers waits for the next
	// process to appear.
	killForkersTime  = 4 * time.Millisecond
	killForkersPause = time.Millisecond
	// killForkersAhead is the number of PIDs that killForkers tries after the PID of the last process that it found. Other
	// programs also start processes, so a run's PIDs have gaps.
	killForkersAhead = 16
)

// killForkers kills processes that fork and end faster than a scan can see. It finds a child by trying the PIDs after the
// PID of the parent. It kills only processes with the mark of the run, and returns the number of killed processes.
func (t *Table) killForkers(id uint64) (hits int) {
	pid := t.members.youngestMember[id].PID
	begin := time.Now()
	for met := begin; ; {
		for next := pid + 1; next <= pid+killForkersAhead; next++ {
			there, hit := t.killMember(next, id)
			if hit {
				hits++
			}
			if there {
				pid, met = next, time.Now()
				break
			}
		}
		if now := time.Now(); now.Sub(begin) > killForkersTime || now.Sub(met) > killForkersPause {
			return hits
		}
	}
}

// killMember kills process pid if it belongs to run id. The result there reports whether any process has this PID.
func (t *Table) killMember(pid int, id uint64) (there, hit bool) {
	return signalIf(pid, unix.SIGKILL, func() bool {
		return t.runOfDead(pid) == id && t.RunOf(pid) == id // both must agree, because another hinit uses the same marks
	})
}

// SignalOther signals a process that is not a child. It reports whether the signal was delivered.
func (t *Table) SignalOther(p stat, signal int) bool {
	_, sent := signalIf(p.PID, syscall.Signal(signal), func() bool {
		now, ok := t.procfs.readStat(p.PID)
		return ok && now.Start == p.Start && !now.Dead()
	})
	return sent
}

// signalIf signals process pid if the function meant returns true. It uses a pidfd, which always refers to the same process: another
// process could get the PID between the check and the signal. The result there reports whether any process has this PID.
func signalIf(pid int, signal syscall.Signal, meant func() bool) (there, sent bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	old := errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) // old kernel, or forbidden by seccomp
	switch {
	case err == nil:
		defer unix.Close(fd)
	case !old:
		return !errors.Is(err, unix.ESRCH), false // any other error: the PID may belong to a thread
	}
	switch {
	case !meant():
		return !old || unix.Kill(pid, 0) == nil, false
	case old:
		return true, unix.Kill(pid, signal) == nil
	}
	return true, unix.PidfdSendSignal(fd, signal, nil, 0) == nil // every kernel with pidfd_open has this call
}

// EndedRuns returns the runs among ids that have no living process. A run does not count as gone while it has dead processes that no
// scan has seen alive; ask again after they have been reaped.
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

// SignalDescendants signals every descendant of this process. In PID 1 it signals all other processes of the namespace (kill(2)).
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
			t.SignalOther(p, signal)
		}
	}
}
