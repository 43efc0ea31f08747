package proc

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// A gateway that has died while another process of its user traces it must count as ended. The kernel reports the exit
// only to the tracer, also when it traces only a thread that is not the first.
func TestAServiceThatDiesWhileItIsTracedHasEnded(t *testing.T) {
	for _, which := range []string{"first", "last"} {
		t.Run(which+" thread", func(t *testing.T) {
			table := newTable(t)
			main, out := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("obey", "3")})
			line(t, out)
			threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", main))
			if err != nil || len(threads) < 2 {
				t.Fatalf("%d threads, %v", len(threads), err)
			}
			thread := threads[0].Name()
			if which == "last" {
				thread = threads[len(threads)-1].Name()
			}
			_, held := spawn(t, table, Spec{ID: 2, Argv: testproc.Argv("tracer", thread)})
			line(t, held)
			if err := table.Signal(1, int(unix.SIGKILL)); err != nil {
				t.Fatal(err)
			}
			if x := exitOf(t, table, 1); x.PID != main || x.Code != -1 || x.Leftover {
				t.Errorf("%+v", x)
			}
			if _, err := os.Stat("/proc/" + strconv.Itoa(main)); err != nil {
				t.Errorf("it was not held: %v", err)
			}
			table.Forget(1)
			if gone := table.EndedRuns([]uint64{1}); len(gone) != 1 {
				t.Error("something of it is alive")
			}
			_ = table.Signal(2, int(unix.SIGKILL))
			orphans := 0
			testkit.Until(t, "the kernel lets it go", func() bool {
				table.Reap(true, func(x Exit) {
					if x.PID == main && x.ID == 0 {
						orphans++
					}
				})
				return orphans == 1
			})
		})
	}
}

// A stop of a traced process must not count as its exit. A gateway that makes PID 1 its tracer and executes a program
// would otherwise get a second instance beside it.
func TestAServiceThatHasItselfTracedIsAlive(t *testing.T) {
	table := newTable(t)
	pid, _ := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("traceme")})
	other, _ := spawn(t, table, Spec{ID: 2, Argv: testproc.Argv("exit", "4")})
	ended := 0
	testkit.Until(t, "it is stopped, and the other has ended", func() bool {
		table.Reap(true, func(x Exit) {
			if x.PID != other || x.Code != 4 {
				t.Errorf("%+v", x)
			}
			ended++
		})
		st, err := procstat.Read(pid)
		return err == nil && st.State == 't' && ended == 1
	})
	time.Sleep(heldSearchPeriod) // now the search for unreported exits is due
	table.Reap(true, func(x Exit) { t.Errorf("%+v", x) })
	_ = table.Signal(1, int(unix.SIGKILL))
	if x := exitOf(t, table, 1); x.Signal != int(unix.SIGKILL) {
		t.Errorf("%+v", x)
	}
}

// TestAStatusDoesNotWaitForASearchOfAllServices checks that each call examines a part of the services. With 500 services,
// each status and each exit waited for 500 reads below /proc.
func TestAStatusDoesNotWaitForASearchOfAllServices(t *testing.T) {
	table := newTable(t)
	const services = 2*heldSearchMax + 1
	for n := range services {
		spawn(t, table, Spec{ID: uint64(n + 1), Argv: []string{"/bin/sleep", "1000"}})
	}
	for _, left := range []int{services - heldSearchMax, 1, 0} {
		table.Reap(true, func(x Exit) { t.Errorf("%+v", x) })
		if len(table.heldUnsearched) != left {
			t.Errorf("%d services are left to the next calls, want %d", len(table.heldUnsearched), left)
		}
	}
}

// A status showed a dead service as up until a search had come to it. A caller who has seen that the first thread has ended
// need not wait for the search, and a service that goes on in another thread stays alive.
func TestAHeldProcessThatACallerHasSeenIsFoundAtOnce(t *testing.T) {
	table := newTable(t)
	main, out := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("obey", "3")})
	line(t, out)
	_, held := spawn(t, table, Spec{ID: 2, Argv: testproc.Argv("tracer", strconv.Itoa(main))})
	line(t, held)
	table.Reap(true, func(x Exit) { t.Errorf("%+v", x) }) // the next search is not due for a while
	table.CheckForTracer(main)
	table.Reap(true, func(x Exit) { t.Errorf("it lives: %+v", x) })
	if err := table.Signal(1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the process to end", func() bool {
		st, err := procstat.Read(main)
		return err == nil && st.Dead()
	})
	table.heldSearched = time.Now()
	var ended []int
	table.CheckForTracer(main)
	table.Reap(true, func(x Exit) { ended = append(ended, x.PID) })
	if len(ended) != 1 || ended[0] != main {
		t.Errorf("ended: %v, want %d", ended, main)
	}
	_ = table.Signal(2, int(unix.SIGKILL))
}
