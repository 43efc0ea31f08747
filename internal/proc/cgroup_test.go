package proc

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testproc"
)

func TestCgroupOfAProcess(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"web/cgroup.procs": "7\n", "web/sub/cgroup.procs": "8\n", "web/memory.current": "1000\n", "web/memory.stat": "anon 1\ninactive_file 300\n", "web/memory.swap.current": "20\n",
		"memory/docker/x/db/cgroup.procs": "9\n", "memory/docker/x/db/memory.usage_in_bytes": "500\n", "memory/docker/x/db/memory.stat": "inactive_file 1\ntotal_inactive_file 600\ntotal_swap 5\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		self, of string
		pid      int
		want     string
		memory   uint64
	}{
		{"0::/\n", "0::/web\n", 7, "web", 720},
		{"0::/\n", "0::/web/sub\n", 8, "web/sub", 0},
		{"0::/a/b\n", "0::/a/b/web\n", 7, "web", 720},
		{"0::/\n", "0::/web\n", 99, "", 0},
		{"0::/\n", "0::/\n", 7, "", 0},
		{"0::/web\n", "0::/\n", 7, "", 0},
		{"0::/\n", "0::/../web\n", 7, "", 0},
		{"0::/\n", "", 7, "", 0},
		{"4:cpu,memory:/docker/x\n0::/\n", "4:cpu,memory:/docker/x/db\n0::/\n", 9, "memory/docker/x/db", 5},
	} {
		c := memoryCgroups{root, func(name string) []byte {
			return []byte(map[string]string{"self/cgroup": tt.self, strconv.Itoa(tt.pid) + "/cgroup": tt.of}[name])
		}}
		want := ""
		if tt.want != "" {
			want = filepath.Join(root, tt.want)
		}
		got := c.cgroupOf(tt.pid)
		if got != want {
			t.Errorf("%q in %q: %q, want %q", tt.of, tt.self, got, want)
		}
		if n, _, _, _ := cgroupMemory(got, true); got != "" && n != tt.memory {
			t.Errorf("%s: %d bytes, want %d", got, n, tt.memory)
		}
	}
	if pids, ok := cgroupPIDs(filepath.Join(root, "web")); !ok || !maps.Equal(pids, map[int]bool{7: true, 8: true}) {
		t.Errorf("the processes are %v", pids)
	}
}

// If a service has a control group that counts memory, its memory is read from the group. The group counts shared memory once.
func TestAMeterReadsTheCgroupOfAService(t *testing.T) {
	dir := ""
	for _, parent := range []string{filepath.Join(cgroupRoot, "memory", cgroupPath(NewMemoryMeter().proc.readFile("self/cgroup"), "memory")), cgroupRoot} {
		name := filepath.Join(parent, "hinit-test-"+strconv.Itoa(os.Getpid()))
		if unix.Access(filepath.Join(parent, "cgroup.procs"), unix.W_OK) != nil || os.Mkdir(name, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { _ = unix.Rmdir(name) })
		if _, _, _, counts := cgroupMemory(name, true); counts {
			dir = name
			break
		}
	}
	if dir == "" {
		t.Skip("no cgroup that counts memory can be made here")
	}
	table := newTable(t)
	const script = `echo $$ >"$0/cgroup.procs" || exit; a=$(head -c 24000000 /dev/zero | tr '\0' x)
		for n in 1 2 3; do (echo child; read none </dev/fd/3) 3<>"$1" & done; wait`
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	pid, out := spawn(t, table, Spec{ID: 1, Name: "shares", Argv: []string{"/bin/sh", "-c", script, dir, fifo}})
	small, quiet := spawn(t, table, Spec{ID: 2, Name: "small", Argv: []string{"/bin/sh", "-c", "echo up; exec sleep 1000"}})
	for range 3 {
		readLine(t, out)
	}
	readLine(t, quiet)
	m := NewMemoryMeter()
	got := m.Measure([]int{pid, small})
	m.cgroups.root = t.TempDir()
	sum := m.Measure([]int{pid, small})
	if got[0].Bytes < 20e6 || got[0].Bytes > 60e6 || sum[0].Bytes < 80e6 {
		t.Errorf("its cgroup has %d bytes, its processes %d", got[0].Bytes, sum[0].Bytes)
	}
	if got[1].Bytes > 4e6 || got[1].Bytes != sum[1].Bytes {
		t.Errorf("the other has %d bytes, and %d", got[1].Bytes, sum[1].Bytes)
	}
	for _, id := range []uint64{1, 2} {
		table.SignalTree(id, int(unix.SIGKILL))
		awaitExit(t, table, id)
	}
}

// A SIGKILL counts as oom only if the group's oom_kill counter has grown since the start of the run. The counter may contain an
// earlier kill.
func TestAKillByHandWasTakenForALackOfMemory(t *testing.T) {
	dir, table := t.TempDir(), newTable(t)
	kills := func(n string) {
		if err := errors.Join(os.WriteFile(dir+"/memory.events", []byte("oom 7\noom_kill "+n+"\n"), 0o600), os.WriteFile(dir+"/cgroup.procs", nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	start := func(id uint64) {
		_, out := spawn(t, table, Spec{ID: id, Argv: testproc.Argv("deaf"), Setup: Setup{Cgroup: dir}})
		readLine(t, out)
	}
	killed := func(id uint64, want bool) {
		t.Helper()
		if err := table.Signal(id, int(unix.SIGKILL)); err != nil {
			t.Fatal(err)
		}
		if x := awaitExit(t, table, id); x.OOM == nil || *x.OOM != want {
			t.Errorf("run %d: %+v, not an end for lack of memory: %v", id, x, !want)
		}
	}
	kills("1")
	start(1)
	killed(1, false)
	start(2)
	start(3)
	kills("2")
	killed(2, true)
	killed(3, false)
}
