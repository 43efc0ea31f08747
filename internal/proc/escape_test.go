package proc

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/procstat"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

func TestADaemonThatEscapedIsFoundAndKilledWithItsService(t *testing.T) {
	for _, how := range []string{"tagged", "clean"} {
		t.Run(how, func(t *testing.T) {
			table := newTable(t)
			if how == "tagged" {
				// without marks, as on a machine where hinit can't set the limit that carries the mark
				table.marker = marker{}
			}
			_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("escape", how, "deaf")})
			daemon, err := strconv.Atoi(readLine(t, out))
			if err != nil {
				t.Fatal(err)
			}
			if how == "tagged" {
				testkit.Until(t, "the daemon to carry the tag", func() bool { return runByTagOf(table, daemon) == 1 })
			}
			if n := table.SignalTree(1, int(unix.SIGKILL)); n != 2 {
				t.Errorf("signalled %d processes, want 2", n)
			}
			awaitExit(t, table, 1)
			testkit.Until(t, "the daemon to be gone", func() bool {
				table.Reap(true, func(Exit) {})
				return !isAlive(daemon) && len(table.EndedRuns([]uint64{1})) == 1
			})
		})
	}
}

// A process can make a child of its own parent (CLONE_PARENT). The kernel makes it a child of the thread that started the main
// process, which may differ from the thread that receives orphans.
func TestASiblingOfTheMainProcessIsLeftBehind(t *testing.T) {
	for range 4 { // the start may use any thread, so repeat the test
		table := newTable(t)
		_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("sibling")})
		pid, err := strconv.Atoi(readLine(t, out))
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Signal(1, int(unix.SIGTERM)); err != nil {
			t.Fatal(err)
		}
		if x := awaitExit(t, table, 1); !x.Leftover {
			t.Errorf("process %d is not said to be left behind", pid)
		}
		if n := table.SignalTree(1, int(unix.SIGKILL)); n != 1 {
			t.Errorf("signalled %d processes, want 1", n)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		testkit.Until(t, "the sibling to be gone", func() bool {
			table.Reap(true, func(Exit) {})
			return !isAlive(pid)
		})
	}
}

// A process that has left its parents, session and environment and lowered its mark must be reported. A service that ended
// before the process started must not be suspected.
func TestAProcessThatHidesItsRunIsNamed(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("hide")})
	daemon, err := strconv.Atoi(readLine(t, out))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(daemon, unix.SIGKILL) })
	if table.marker.ownLimit == 0 {
		t.Skip("there are no marks here")
	}
	table.SignalTree(1, int(unix.SIGKILL))
	if x := awaitExit(t, table, 1); x.Leftover || !slices.Equal(x.PossibleMembers, []int{daemon}) {
		t.Errorf("leftover is %v, and these hide: %v, not %d", x.Leftover, x.PossibleMembers, daemon)
	}
	if !isAlive(daemon) {
		t.Error("it was killed on a guess")
	}
	p, _ := table.procfs.readStat(daemon)
	testkit.Until(t, "a tick of the kernel's clock", func() bool { // a later clock tick, because the order of two starts in one tick is unknown
		pid, _ := spawn(t, table, Spec{ID: 2, Name: "later", Argv: testproc.Argv("exit")})
		later, ok := table.procfs.readStat(pid)
		x := awaitExit(t, table, 2)
		table.Forget(2)
		if !ok || later.Start <= p.Start {
			return false
		}
		if len(x.PossibleMembers) != 0 {
			t.Errorf("of a run that began later these are said to hide: %v", x.PossibleMembers)
		}
		return true
	})
}

// A process whose first thread has ended counts as alive, although /proc shows it as a zombie.
func TestAProcessWhoseFirstThreadHasEndedIsAlive(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("escape", "clean", "headless")})
	daemon, err := strconv.Atoi(readLine(t, out))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "its first thread to end", func() bool {
		p, ok := table.procfs.readStat(daemon)
		return ok && p.State == 'Z'
	})
	if n := table.SignalTree(1, int(unix.SIGTERM)); n != 2 {
		t.Errorf("signalled %d processes, want 2", n)
	}
	if x := awaitExit(t, table, 1); !x.Leftover {
		t.Error("nothing is said to be left behind")
	}
	if len(table.EndedRuns([]uint64{1})) != 0 {
		t.Error("the run is said to be gone")
	}
	table.SignalTree(1, int(unix.SIGKILL))
	testkit.Until(t, "the daemon to be gone", func() bool {
		table.Reap(true, func(Exit) {})
		return unix.Kill(daemon, 0) != nil && len(table.EndedRuns([]uint64{1})) == 1
	})
}

func TestAnotherServicesDaemonIsLeftAlone(t *testing.T) {
	table := newTable(t)
	daemons := make([]int, 2)
	for i := range daemons {
		_, out := spawn(t, table, Spec{ID: uint64(i + 1), Name: "svc", Argv: testproc.Argv("escape", "clean", "deaf")})
		daemons[i], _ = strconv.Atoi(readLine(t, out))
	}
	table.SignalTree(1, int(unix.SIGKILL))
	awaitExit(t, table, 1)
	testkit.Until(t, "the first daemon to be gone", func() bool {
		table.Reap(true, func(Exit) {})
		return !isAlive(daemons[0])
	})
	if !isAlive(daemons[1]) {
		t.Error("the daemon of the other service is gone")
	}
}

func TestMarksNestAndRunOut(t *testing.T) {
	m := marker{initialLimit: firstMark, ownLimit: firstMark, step: markStep}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_RTTIME, &before); err != nil {
		t.Fatal(err)
	}
	if before.Max < firstMark>>1 {
		t.Skip("real-time scheduling is limited here")
	}
	first := m.lowerLimit()
	if first == 0 && before.Max != unix.RLIM_INFINITY {
		t.Skip("this process has lower marks already")
	}
	nested := newMarker()
	if nested.step != nestedMarkStep || nested.ownLimit != first {
		t.Errorf("nested marker %+v under mark %d", nested, first)
	}
	inner := nested.lowerLimit()
	if inner >= first || inner <= first-markStep {
		t.Errorf("inner mark %d is not within the outer run's range (%d, %d]", inner, first-markStep, first)
	}
	m.ownLimit = firstMark >> 1
	if m.lowerLimit() != 0 {
		t.Error("marks go below their floor")
	}
}

func TestWhatACrashLeavesBehindIsReported(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("children", "3")})
	readLine(t, out)
	if err := table.Signal(1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	if x := awaitExit(t, table, 1); !x.Leftover {
		t.Fatalf("exit = %+v, want leftovers", x)
	}
	if gone := table.EndedRuns([]uint64{1}); len(gone) != 0 {
		t.Error("reported as gone while children live")
	}
	if n := table.SignalTree(1, int(unix.SIGTERM)); n != 3 {
		t.Errorf("signalled %d, want 3", n)
	}
	testkit.Until(t, "all gone", func() bool {
		table.Reap(true, func(Exit) {})
		return len(table.EndedRuns([]uint64{1})) == 1
	})
}

func TestAnotherUsersEscapeeIsFoundByRootWithoutPtraceCapability(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	table := newTable(t)
	script := `(setsid sleep 100 >/dev/null 2>&1 & echo $!) ; exec sleep 100`
	_, out := spawn(t, table, Spec{
		ID: 1, Name: "svc", Argv: []string{"/bin/sh", "-c", script}, Dir: "/", Cred: &Cred{UID: 10000, GID: 10000},
	})
	daemon, err := strconv.Atoi(readLine(t, out))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the orphan to carry the tag", func() bool {
		_, err := readFileAs("/proc/"+strconv.Itoa(daemon)+"/environ", 10000, 10000)
		return err == nil && runByTagOf(table, daemon) == 1
	})
	if n := table.SignalTree(1, int(unix.SIGKILL)); n < 2 || n > 3 { // the shell that started the daemon may still be alive
		t.Errorf("signalled %d, want 2 or 3", n)
	}
	if uid := syscall.Geteuid(); uid != 0 {
		t.Errorf("this process's user is %d now", uid)
	}
}

// An orphan of an ended run must count for no other run, although its environment has the tag of another run. Otherwise its
// memory would restart the wrong gateway.
func TestAnOrphanOfARunThatIsGoneCountsAsNoneOfAnotherRun(t *testing.T) {
	table := newTable(t)
	if table.marker.step == 0 {
		t.Skip("there are no marks here")
	}
	argv := []string{"/bin/sh", "-c", "(" + TagVar + "=svc:" + table.tagNonce + ":2 setsid sleep 100 >/dev/null 2>&1 & echo $!)"}
	_, out := spawn(t, table, Spec{ID: 1, Name: "gone", Argv: argv})
	daemon := readPID(t, out)
	_, out = spawn(t, table, Spec{ID: 2, Name: "other", Argv: testproc.Argv("sleep")})
	readLine(t, out)
	testkit.Until(t, "the daemon to be an orphan with the tag", func() bool {
		p, ok := table.procfs.readStat(daemon)
		return ok && p.Parent == os.Getpid() && runByTagOf(table, daemon) == 2
	})
	awaitExit(t, table, 1)
	if id := table.RunOf(daemon); id != 1 {
		t.Errorf("the daemon is of run %d before its run is forgotten", id)
	}
	table.Forget(1)
	if id := table.RunOf(daemon); id != 0 {
		t.Errorf("the daemon is of run %d", id)
	}
	if n := table.SignalTree(2, int(unix.SIGKILL)); n != 1 || !isAlive(daemon) {
		t.Errorf("signalled %d, want 1; the daemon lives: %v", n, isAlive(daemon))
	}
	awaitExit(t, table, 2)
	_ = unix.Kill(daemon, unix.SIGKILL)
}

// A process of the agent must not count for root's service, even if it has taken the service's mark. Otherwise hinit would end
// root's service because of the agent's memory.
func TestAProcessOfTheAgentCountsAsNoneOfAServiceOfRoots(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	for _, how := range []string{"mark", "tag"} {
		t.Run(how, func(t *testing.T) {
			table := newTable(t)
			claim := table.marker.ownLimit - 2*table.marker.step
			argv := testproc.Argv("hide", strconv.FormatUint(claim, 10))
			if how == "tag" {
				table.marker = marker{}
				argv = []string{"/bin/sh", "-c", "(" + TagVar + "=svc:" + table.tagNonce + ":2 setsid sleep 100 >/dev/null 2>&1 & echo $!); exec sleep 100"}
			} else if claim <= firstMark>>1 {
				t.Skip("there are no marks here")
			}
			_, out := spawn(t, table, Spec{ID: 1, Name: "agents", Argv: argv, Dir: "/", Cred: &Cred{UID: 10000, GID: 10000}})
			daemon := readPID(t, out)
			_, out = spawn(t, table, Spec{ID: 2, Name: "roots", Argv: testproc.Argv("sleep")})
			readLine(t, out)
			testkit.Until(t, "the daemon to claim the run of root's", func() bool {
				if limit, ok := table.readLimit(daemon); how == "mark" {
					return ok && limit == claim && table.runs[2].mark == claim
				}
				env, _ := readFileAs("/proc/"+strconv.Itoa(daemon)+"/environ", 10000, 10000)
				p, ok := table.procfs.readStat(daemon)
				return ok && p.Session == daemon && p.Parent == os.Getpid() && strings.Contains(string(env), ":2\x00")
			})
			if id := table.RunOf(daemon); id != 0 {
				t.Errorf("the daemon is of run %d", id)
			}
			own := ParseMemory(procstat.ReadStatus(strconv.Itoa(table.MainPID(2)))).Bytes
			if got := NewMemoryMeter().Measure([]int{table.MainPID(2)})[0].Bytes; got > own+own/2 {
				t.Errorf("the service has %d bytes, with the daemon's: %d", own, got)
			}
			if n := table.SignalTree(2, int(unix.SIGKILL)); n != 1 || !isAlive(daemon) {
				t.Errorf("signalled %d, want 1; the daemon lives: %v", n, isAlive(daemon))
			}
			awaitExit(t, table, 2)
			if len(table.EndedRuns([]uint64{2})) != 1 {
				t.Error("the run of root's is not gone while the daemon lives")
			}
		})
	}
}

// An orphan of another user counts for root's service if it is still in the process group of the service.
func TestAProcessOfAnotherUserIsOfTheServiceInWhoseGroupItIs(t *testing.T) {
	if os.Getuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	table := newTable(t)
	_, out := spawn(t, table, Spec{ID: 1, Name: "roots", Argv: []string{
		"/bin/sh", "-c", "(setpriv --reuid 10000 --clear-groups sleep 100 >/dev/null & echo $!); exec sleep 100",
	}})
	orphan := readPID(t, out)
	testkit.Until(t, "the orphan to be of the agent", func() bool {
		var st unix.Stat_t
		return unix.Stat("/proc/"+strconv.Itoa(orphan), &st) == nil && st.Uid == 10000
	})
	testkit.Until(t, "the orphan to be this process's", func() bool { p, ok := table.procfs.readStat(orphan); return ok && p.Parent == os.Getpid() })
	if n := table.SignalTree(1, int(unix.SIGKILL)); n != 2 {
		t.Errorf("signalled %d processes, want 2", n)
	}
}

func TestAProcessThatForksWhileBeingKilledDoesNotGetAway(t *testing.T) {
	table := newTable(t)
	_, out := spawn(t, table, Spec{
		ID: 1, Name: "svc", Argv: []string{"/bin/sh", "-c", "echo ready; while :; do (sleep 5 &) ; done"},
	})
	readLine(t, out)
	table.SignalTree(1, int(unix.SIGKILL))
	awaitExit(t, table, 1)
	testkit.Until(t, "everything of it to be gone", func() bool {
		table.SignalTree(1, int(unix.SIGKILL))
		table.Reap(true, func(Exit) {})
		return len(table.EndedRuns([]uint64{1})) == 1
	})
}

func runByTagOf(table *Table, pid int) uint64 {
	table.environWaitTime = 0
	p, _ := table.procfs.readStat(pid)
	id, _ := table.runByTag(identity{pid, p.Start})
	return id
}

// A process can keep its memory locked for minutes, and PID 1 must not wait for its environment. Another read takes the only
// thread, so no read finishes.
func TestPID1StoodStillBecauseAProcessHeldItsMemory(t *testing.T) {
	table := newTable(t)
	table.marker = marker{}
	held, free := make(chan struct{}), make(chan struct{})
	go blocking.Run(blocking.Environ, func() { close(held); <-free })
	<-held
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("escape", "tagged", "deaf")})
	daemon := readPID(t, out)
	if id := table.RunOf(daemon); id != 0 {
		t.Errorf("the daemon is of run %d though its environment was not read", id)
	}
	if n := table.SignalTree(1, int(unix.SIGKILL)); n != 1 {
		t.Errorf("signalled %d processes, want the main process", n)
	}
	awaitExit(t, table, 1)
	for who := range table.members.unreadEnvirons {
		// keeps environLimit from passing on a slow machine
		table.members.unreadEnvirons[who] = time.Now().Add(time.Hour)
	}
	if gone := table.EndedRuns([]uint64{1}); len(gone) != 0 {
		t.Error("the run is gone, though the daemon may belong to it")
	}
	close(free)
	testkit.Until(t, "the daemon to be found and gone", func() bool {
		table.SignalTree(1, int(unix.SIGKILL))
		table.Reap(true, func(Exit) {})
		return !isAlive(daemon) && len(table.EndedRuns([]uint64{1})) == 1
	})
}

// A run must be able to end although the environment of an orphan can't be read. After a second, such an orphan counts as one
// that hides its run.
func TestAnOrphanWhoseMemoryStaysLockedKeepsNoRunAlive(t *testing.T) {
	table := newTable(t)
	table.marker = marker{}
	held, free := make(chan struct{}), make(chan struct{})
	defer close(free)
	go blocking.Run(blocking.Environ, func() { close(held); <-free })
	<-held
	_, out := spawn(t, table, Spec{ID: 1, Name: "svc", Argv: testproc.Argv("escape", "tagged", "deaf")})
	daemon := readPID(t, out)
	defer func() { _ = unix.Kill(daemon, unix.SIGKILL) }()
	table.SignalTree(1, int(unix.SIGKILL))
	awaitExit(t, table, 1)
	testkit.Until(t, "the run to be gone", func() bool {
		table.Reap(true, func(Exit) {})
		return len(table.EndedRuns([]uint64{1})) == 1
	})
}
