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

// fresh is how old a look at the process table may be where the answer need not have everything that was forked since.
const fresh = 20 * time.Millisecond

// identity tells a process from another that gets its number later.
type identity struct {
	pid   int
	start uint64
}

// families is which process belongs to which run, as of one look.
type families struct {
	look    int                 // number of the look it was made from
	known   map[identity]uint64 // living process, main ones left out → run
	living  map[uint64][]stat   // run → its living processes, the main one left out
	origins map[identity]uint64 // orphan → run, 0 for none, unknown: asked once per process
	ended   map[identity]uint64 // dead orphan that is not reaped → run, 0 for none, unknown
	fresh   map[uint64]int      // run → how many of these the look before did not show dead
	asked   int                 // how many of these were asked for their mark
	strays  []stat              // living orphan that hides its run
	latest  map[uint64]stat     // run → the youngest process of it, dead or alive, the main one left out
}

// unknown stands for the run of an orphan that may be of any: it is dead and its mark can't be read, or it hides its run.
const unknown = ^uint64(0)

// sort attributes every process of the current scan to its run. A process belongs to a run when it is its main process, when an
// earlier scan has found that, or when its parent belongs to it. The group or session that the main process made counts while a
// known process holds that number, so that the number can't have been reused. An orphan belongs to a run if it has the run's mark
// or tag, and is root's or of the run's user.
func (t *Table) sort() {
	all := t.proc.stats
	if t.fam.look == t.proc.looks {
		return
	}
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
			id = t.fam.known[identity{p.PID, p.Start}]
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
			id, asked := t.fam.origins[who]
			if !asked {
				id = t.origin(p.PID)
				if id == 0 && t.strayed(p.PID) {
					id = unknown
				}
			}
			origins[who] = id
			if t.runs[id] != nil {
				owner[p.PID] = id
			} else if id == unknown {
				strays = append(strays, p)
			}
		}
	}
	before := t.fam
	t.fam = families{
		look: t.proc.looks, known: make(map[identity]uint64), living: make(map[uint64][]stat), origins: origins, strays: strays,
		ended: make(map[identity]uint64), fresh: make(map[uint64]int), latest: make(map[uint64]stat),
	}
	for _, p := range slices.Backward(all) { // the youngest first, as long as the numbers grow
		if p.Dead() && p.Parent == self {
			t.sortEnded(p, &before, groups, sessions)
		}
	}
	for _, p := range all {
		if p.Dead() || p.PID == self {
			continue
		}
		id := ancestry(p.PID, self, owner, parent)
		if _, main := t.owned[p.PID]; id != 0 && !main {
			t.fam.known[identity{p.PID, p.Start}] = id
			t.fam.living[id] = append(t.fam.living[id], p)
			t.noteLatest(id, p)
		}
	}
}

// most is how many dead orphans one look asks for their run. The oldest beyond it are unknown.
const most = 256

// sortEnded attributes a dead orphan. A process that forks and ends at once may never be seen alive. But its dead entry is seen,
// because only this process reaps it, and not during a scan. So a scan that shows no process of a run, neither alive nor newly
// dead, proves that all of them have ended.
func (t *Table) sortEnded(p stat, before *families, groups, sessions map[int]uint64) {
	if _, main := t.owned[p.PID]; main {
		return
	}
	who := identity{p.PID, p.Start}
	id, seen := before.ended[who]
	if !seen {
		id = before.known[who]
		switch {
		case id != 0:
		case t.fam.asked == most:
			id = unknown
		default:
			t.fam.asked++
			id = t.endedOf(p.PID)
		}
		if id == unknown || id == 0 {
			id = cmp.Or(groups[p.Group], sessions[p.Session], id)
		}
		t.fam.fresh[id]++
	}
	t.fam.ended[who] = id
	t.noteLatest(id, p)
}

func (t *Table) noteLatest(id uint64, p stat) {
	if last, ok := t.fam.latest[id]; !ok || last.Start < p.Start || last.Start == p.Start && last.PID < p.PID {
		t.fam.latest[id] = p
	}
}

// lingering reports whether there are runs whose main process is reaped and that are not forgotten.
func (t *Table) lingering() bool { return len(t.runs) > len(t.owned) }

// ancestry returns the run of the nearest ancestor that has one, the process itself included, and notes it for all on the
// way. parent may hold a circle: it was not read in one instant.
func ancestry[ID any](pid, self int, owner map[int]ID, parent map[int]int) (id ID) {
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

// leftBehind reports whether processes live of a run whose main process has ended and is not reaped. Where several have ended
// together, one look at the process table does for all.
func (t *Table) leftBehind(r *run, several bool) bool {
	if !t.proc.sawEnd(r.main) { // else the look is younger than the end, and nothing it started can be missing
		if !several && !t.proc.hasChildBesides(t.owned) {
			return false
		}
		t.proc.look()
	}
	for range confirm {
		t.sort()
		if len(t.fam.living[r.id]) > 0 || t.fam.fresh[r.id] == 0 {
			break
		}
		t.proc.look() // some have just ended; they may have left others
	}
	t.sort()
	return len(t.fam.living[r.id])+t.fam.fresh[r.id] > 0
}

// straysSince lists the orphans that hide their run and are younger than the main process of a run. It goes by the last look, which
// shows them if there are any: while an orphan lives, the end of each main process takes a look.
func (t *Table) straysSince(main int) (pids []int) {
	at := slices.IndexFunc(t.proc.stats, func(p stat) bool { return p.PID == main })
	if at < 0 || t.fam.look != t.proc.looks {
		return nil
	}
	for _, p := range t.fam.strays {
		if p.Start >= t.proc.stats[at].Start {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// confirm is how many looks more it takes to take deaths of processes of a run for a sign of life.
const confirm = 2

// sawEnd reports whether the last look is of this turn and already shows the process as ended.
func (s *scanner) sawEnd(pid int) bool {
	return time.Since(s.at) < fresh && slices.ContainsFunc(s.stats, func(p stat) bool { return p.PID == pid && p.Dead() })
}

// Observe looks at the living processes of a run, so one that loses its parents later is still known to belong. The process table
// is read only where the service is not alone, and once for many that are observed together.
func (t *Table) Observe(id uint64) {
	if r := t.runs[id]; r != nil && r.main != 0 && t.proc.stale() && !t.proc.hasChild(r.main) && !t.proc.hasChildBesides(t.owned) {
		t.proc.spared = time.Now()
		return
	}
	t.proc.lookWithin(fresh)
	t.sort()
}

// SignalTree signals every living process of a run. For KILL it repeats that until a scan finds no new one, so that a process
// that forks meanwhile does not escape. It returns how many processes it signalled; 0 means that all have ended.
func (t *Table) SignalTree(id uint64, signal int) int {
	r := t.runs[id]
	if r == nil {
		return 0
	}
	seen, signalled := make(map[identity]bool), 0
	if signal == int(unix.SIGKILL) {
		t.killGroup(r)
	}
	if r.main != 0 {
		_ = unix.Kill(r.main, syscall.Signal(signal)) // it can't be gone: it is not reaped
		signalled++
	}
	t.proc.lookWithin(fresh)
	for range 8 {
		t.sort()
		before := len(seen)
		for _, p := range t.fam.living[id] {
			if who := (identity{p.PID, p.Start}); !seen[who] {
				seen[who] = true
				if t.kill(p, signal) {
					signalled++
				}
				if signal == int(unix.SIGKILL) {
					t.fam.ended[who] = id // it forks no more, so its death tells nothing
				}
			}
		}
		if len(seen) == before && t.fam.fresh[id] == 0 || signal != int(unix.SIGKILL) {
			break
		}
		if t.fam.fresh[id] > 0 && len(t.fam.living[id]) == 0 {
			signalled += t.chase(id)
		}
		t.proc.look()
	}
	t.sort()
	if len(t.fam.living[id])+t.fam.fresh[id] > 0 {
		return max(signalled, 1) // it forks and ends faster than it can be seen
	}
	return signalled
}

const (
	// chaseTime is how long one chase lasts at most, and chaseLull how long it waits for a next generation.
	chaseTime = 4 * time.Millisecond
	chaseLull = time.Millisecond
	// chaseAhead is how many process numbers it looks ahead: others are started meanwhile.
	chaseAhead = 16
)

// chase follows a process that forks and ends faster than the process table can be read: the next generation has the next free
// number. It signals only a process with the mark of the run, and returns how many.
func (t *Table) chase(id uint64) (hits int) {
	pid := t.fam.latest[id].PID
	begin := time.Now()
	for met := begin; ; {
		for next := pid + 1; next <= pid+chaseAhead; next++ {
			there, hit := t.strike(next, id)
			if hit {
				hits++
			}
			if there {
				pid, met = next, time.Now()
				break
			}
		}
		if now := time.Now(); now.Sub(begin) > chaseTime || now.Sub(met) > chaseLull {
			return hits
		}
	}
}

// strike kills the process of a number if it is of a run, through a descriptor that can't be recycled.
func (t *Table) strike(pid int, id uint64) (there, hit bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case err == nil:
		defer unix.Close(fd)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // old kernel, or seccomp
		if t.endedOf(pid) != id || t.Of(pid) != id {
			return unix.Kill(pid, 0) == nil, false
		}
		return true, unix.Kill(pid, unix.SIGKILL) == nil
	default:
		return !errors.Is(err, unix.ESRCH), false // a thread is there too
	}
	if t.endedOf(pid) != id || t.Of(pid) != id { // another hinit gives the same marks
		return true, false
	}
	return true, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// kill signals a process that is not a child through a descriptor, because its number could go to another meanwhile. It reports
// whether the process took the signal.
func (t *Table) kill(p stat, signal int) bool {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // old kernel, or seccomp
		return unix.Kill(p.PID, syscall.Signal(signal)) == nil
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if now, ok := t.proc.stat(p.PID); !ok || now.Start != p.Start || now.Dead() {
		return false
	}
	return unix.PidfdSendSignal(fd, syscall.Signal(signal), nil, 0) == nil // an older call than the other
}

// Gone returns which of the given runs have no living process. While unseen processes of a run end it is not gone; ask again
// once these are reaped.
func (t *Table) Gone(ids []uint64) []uint64 {
	var gone []uint64
	t.proc.look()
	t.sort()
	for _, id := range ids {
		if r := t.runs[id]; r == nil || r.main == 0 && len(t.fam.living[id])+t.fam.fresh[id]+t.fam.fresh[unknown] == 0 {
			gone = append(gone, id)
		}
	}
	return gone
}

// SignalRest signals every descendant of this process. PID 1 signals everything in its namespace but itself (kill(2)).
func (t *Table) SignalRest(signal int) {
	self := os.Getpid()
	if self == 1 {
		_ = unix.Kill(-1, syscall.Signal(signal))
		return
	}
	t.proc.look()
	owner, parent := map[int]uint64{self: 1, 0: 0, 1: 0}, make(map[int]int)
	for _, p := range t.proc.stats {
		parent[p.PID] = p.Parent
	}
	for _, p := range t.proc.stats {
		if p.PID != self && !p.Dead() && ancestry(p.Parent, 0, owner, parent) == 1 {
			t.kill(p, signal)
		}
	}
}

// Began returns when a process began, by the kernel's count since its own start; 0 when there is none.
func (t *Table) Began(pid int) uint64 {
	p, _ := t.proc.stat(pid)
	return p.Start
}

// KillSession kills the processes of a session that began before a moment (Began). One that was made later with the same number is
// another.
func (t *Table) KillSession(session int, before uint64) {
	if session <= 1 {
		return
	}
	t.proc.look()
	for _, p := range t.proc.stats {
		if p.Session == session && p.Start < before && !p.Dead() && p.PID != os.Getpid() {
			t.kill(p, int(unix.SIGKILL))
		}
	}
}
