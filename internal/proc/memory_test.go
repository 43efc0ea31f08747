package proc

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

func TestAMeterMeasuresWholeTrees(t *testing.T) {
	table := newTable(t)
	// The script starts a child in the tree, and a child that has left the group, the session and the parent.
	const script = `a=$(head -c 4000000 /dev/zero | tr '\0' x); sh -c 'b=$(head -c 8000000 /dev/zero | tr "\0" x); echo child; sleep 1000 & wait' &
		setsid sh -c 'sh -c "c=\$(head -c 8000000 /dev/zero | tr \"\\0\" x); echo away; sleep 1000 & wait" & exit'
		wait`
	pid, out := spawn(t, table, Spec{ID: 1, Name: "big", Argv: []string{"/bin/sh", "-c", script}})
	small, quiet := spawn(t, table, Spec{ID: 2, Name: "small", Argv: []string{"/bin/sh", "-c", "echo up; exec sleep 1000"}})
	readLine(t, out)
	readLine(t, out)
	readLine(t, quiet)
	got := NewMemoryMeter().Measure([]int{pid, small, 1 << 30})
	if got[0].Bytes < 20e6 || got[0].Bytes > 120e6 || got[1].Bytes > 4e6 || got[2].Bytes != 0 {
		t.Errorf("they have %v bytes", got)
	}
	for _, id := range []uint64{1, 2} {
		table.SignalTree(id, int(unix.SIGKILL))
		awaitExit(t, table, id)
	}
}

// Shared memory counts for the service that maps it, once for all its processes. Otherwise hinit would end other services instead
// of an agent that seems to use little.
func TestTheSharedMemoryOfAnAgentCounted(t *testing.T) {
	table := newTable(t)
	pid, out := spawn(t, table, Spec{ID: 1, Name: "shares", Argv: testproc.Argv("share", "50000000", "parent")})
	readLine(t, out)
	if got := NewMemoryMeter().Measure([]int{pid})[0]; got.Bytes < 50e6 || got.Bytes > 95e6 || got.Shared < 50e6 || got.Shared > 60e6 {
		t.Errorf("it has %+v", got)
	}
	table.SignalTree(1, int(unix.SIGKILL))
	awaitExit(t, table, 1)
}

// /proc/PID shows no memory after the first thread has ended, but the memory must count.
func TestAProcessWithoutItsFirstThreadHadNoMemory(t *testing.T) {
	table := newTable(t)
	pid, out := spawn(t, table, Spec{ID: 1, Name: "headless", Argv: testproc.Argv("eat", "50000000", "headless")})
	readLine(t, out)
	testkit.Until(t, "its first thread has ended", func() bool { st, err := procstat.Read(pid); return err == nil && st.State == 'Z' })
	if got := NewMemoryMeter().Measure([]int{pid})[0]; got.Bytes < 50e6 || got.Bytes > 150e6 {
		t.Errorf("it has %+v", got)
	}
	table.SignalTree(1, int(unix.SIGKILL))
	awaitExit(t, table, 1)
}

// A file in memory counts once for a service with a control group, although the service has the file open. Counted twice, it
// would hide memory that belongs to no service.
func TestTheFilesInMemoryOfAControlGroupCountedTwice(t *testing.T) {
	table := newTable(t)
	pid, out := spawn(t, table, Spec{ID: 1, Name: "web", Argv: []string{"/bin/sh", "-c", "echo up; exec sleep 1000"}})
	readLine(t, out)
	root := t.TempDir()
	for name, text := range map[string]string{
		"cgroup.procs": strconv.Itoa(pid), "memory.current": "1000", "memory.swap.current": "20", "memory.stat": "inactive_file 300\nactive_file 100\nshmem 400\n",
	} {
		if err := errors.Join(os.MkdirAll(root+"/web", 0o755), os.WriteFile(root+"/web/"+name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	m := NewMemoryMeter()
	m.cgroups = memoryCgroups{root, func(name string) []byte {
		return []byte(map[string]string{"self/cgroup": "0::/\n", strconv.Itoa(pid) + "/cgroup": "0::/web\n"}[name])
	}}
	got := m.Measure([]int{pid})[0]
	if got.CPU = 0; got != (Memory{Bytes: 720, Swapped: 120, Shared: 400}) {
		t.Errorf("it has %+v", got)
	}
	table.SignalTree(1, int(unix.SIGKILL))
	awaitExit(t, table, 1)
}

func TestParseMemory(t *testing.T) {
	for text, want := range map[procstat.Status]Memory{
		"Name:\tx\nVmRSS:\t   90 kB\nRssAnon:\t   40 kB\nRssShmem:\t 7 kB\nVmSwap:\t 2 kB\n": {Bytes: 49 << 10, Swapped: 2 << 10, Shared: 7 << 10},
		"Name:\tx\nVmPTE:\t   90 kB\nRssAnon:\t   40 kB\nVmSwap:\t 2 kB\n":                   {Bytes: 132 << 10, Swapped: 2 << 10},
		"Name:\tx\nVmRSS:\t 90 kB\n": {Bytes: 90 << 10},
		"":                           {}, "Name:\tx\nRssAnon:\n": {},
	} {
		if got := ParseMemory(text); got != want {
			t.Errorf("%q: %+v, not %+v", text, got, want)
		}
	}
}
