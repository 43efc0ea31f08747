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

// A dead gateway counts as ended even if another process of its user traces it, or only one of its threads. The kernel reports
// the exit only to the tracer.
func TestAServiceThatDiesWhileItIsTracedHasEnded(t *testing.T) {
	for _, which := range []string{"first", "last"} {
		t.Run(which+" thread", func(t *testing.T) {
			table := newTable(t)
			main, out := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("obey", "3")})
			readLine(t, out)
			threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", main))
			if err != nil || len(threads) < 2 {
				t.Fatalf("%d threads, %v", len(threads), err)
			}
			thread := threads[0].Name()
			if which == "last" {
				thread = threads[len(threads)-1].Name()
			}
			_, held := spawn(t, table, Spec{ID: 2, Argv: testproc.Argv("tracer", thread)})
			readLine(t, held)
			if err := table.Signal(1, int(unix.SIGKILL)); err != nil {
				t.Fatal(err)
			}
			if x := awaitExit(t, table, 1); x.PID != main || x.Code != -1 || x.Leftover {
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

// A stop of a traced process is no exit. If a gateway makes PID 1 its tracer and executes a program, hinit must not start a
// second instance.
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
	time.Sleep(tracerSearchInterval)
	table.Reap(true, func(x Exit) { t.Errorf("%+v", x) })
	_ = table.Signal(1, int(unix.SIGKILL))
	if x := awaitExit(t, table, 1); x.Signal != int(unix.SIGKILL) {
		t.Errorf("%+v", x)
	}
}

// Each call must examine only some services. With 500 services, each status and each exit would otherwise wait for 500 reads
// below /proc.
func TestAStatusDoesNotWaitForASearchOfAllServices(t *testing.T) {
	table := newTable(t)
	const services = 2*maxTracerSearch + 1
	for n := range services {
		spawn(t, table, Spec{ID: uint64(n + 1), Argv: []string{"/bin/sleep", "1000"}})
	}
	for _, left := range []int{services - maxTracerSearch, 1, 0} {
		table.Reap(true, func(x Exit) { t.Errorf("%+v", x) })
		if len(table.tracerUnsearched) != left {
			t.Errorf("%d services are left to the next calls, want %d", len(table.tracerUnsearched), left)
		}
	}
}

// A status reports a dead service as dead at once, without waiting for the next search. A service of which another thread still
// runs stays alive.
func TestAHeldProcessThatACallerHasSeenIsFoundAtOnce(t *testing.T) {
	table := newTable(t)
	main, out := spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("obey", "3")})
	readLine(t, out)
	_, held := spawn(t, table, Spec{ID: 2, Argv: testproc.Argv("tracer", strconv.Itoa(main))})
	readLine(t, held)
	table.Reap(true, func(x Exit) { t.Errorf("%+v", x) })
	table.CheckForTracer(main)
	table.Reap(true, func(x Exit) { t.Errorf("it lives: %+v", x) })
	if err := table.Signal(1, int(unix.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the process to end", func() bool {
		st, err := procstat.Read(main)
		return err == nil && st.Dead()
	})
	table.tracerSearchedAt = time.Now()
	var ended []int
	table.CheckForTracer(main)
	table.Reap(true, func(x Exit) { ended = append(ended, x.PID) })
	if len(ended) != 1 || ended[0] != main {
		t.Errorf("ended: %v, want %d", ended, main)
	}
	_ = table.Signal(2, int(unix.SIGKILL))
}
