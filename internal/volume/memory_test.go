package volume

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// Each row says which gateways must wait for memory at the boot. The container has 1000 MiB, of which 800 are for starts.
func TestWhoWaitsForMemoryAtTheBoot(t *testing.T) {
	of := func(name string, rank int) boot.Gateway {
		return boot.Gateway{Service: "gateway-" + name, Profile: name, MemoryRank: rank}
	}
	for _, tt := range []struct {
		what string
		list []boot.Gateway
		used map[string]uint64
		has  uint64
		want []string
	}{
		{"all fit", []boot.Gateway{of("a", 1), of("b", 1)}, map[string]uint64{"a": 300, "b": 300}, 100, nil},
		{"the last one does not fit", []boot.Gateway{of("a", 1), of("b", 1), of("c", 1)}, map[string]uint64{"a": 300, "b": 300, "c": 300}, 100, []string{"c"}},
		{"the most important one starts", []boot.Gateway{of("a", 0), of("b", 1), of("c", 2)}, map[string]uint64{"a": 300, "b": 300, "c": 300}, 100, []string{"a"}},
		{"a small one passes by", []boot.Gateway{of("a", 2), of("b", 1), of("c", 0)}, map[string]uint64{"a": 380, "b": 380, "c": 10}, 100, []string{"b"}},
		{"none is known", []boot.Gateway{of("a", 1), of("b", 1)}, nil, 100, nil},
		{"one had more than there is", []boot.Gateway{of("a", 1)}, map[string]uint64{"a": 5000}, 100, nil},
		{"garbage", []boot.Gateway{of("a", 1), of("b", 1)}, map[string]uint64{"a": 1 << 43, "b": 1 << 43}, 10, []string{"b"}},
		{"there is no room at all", []boot.Gateway{of("a", 1), of("b", 1)}, map[string]uint64{"a": 1}, 2000, []string{"a"}},
	} {
		used := make(map[string]uint64)
		for name, mib := range tt.used {
			used["gateway-"+name] = mib << 20
		}
		var got []string
		for _, w := range reserveMemory(tt.list, used, proc.ContainerMemory{Used: tt.has << 20, Limit: 1000 << 20}) {
			if w.Hold != "" {
				got = append(got, strings.TrimPrefix(w.Service, "gateway-"))
			}
		}
		if slices.Sort(got); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q wait, want %q", tt.what, got, tt.want)
		}
	}
}

// The next boot must use the recorded memory of each gateway, but not a record that the agent could have written.
func TestWhatAGatewayHadIsKnownAtTheNextBoot(t *testing.T) {
	data := t.TempDir()
	for _, dir := range []string{".hinit", "profiles/coder", "profiles/old"} {
		if err := os.MkdirAll(filepath.Join(data, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(data, memoryFile)
	if err := os.WriteFile(file, []byte(`{"gateway-old":7,"gateway-gone":8,"gateway-coder":9,"../x":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	o := Options{Options: boot.Options{Home: data}}
	if err := recordMemory(o, []boot.Gateway{{Service: "gateway-coder", Profile: "coder", MainPID: cmd.Process.Pid}}); err != nil {
		t.Fatal(err)
	}
	home, err := fsutil.OpenNoLink(data, fsutil.ProcessActor())
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	used := readMemoryRecord(home)
	if names := slices.Sorted(maps.Keys(used)); !slices.Equal(names, []string{"gateway-coder", "gateway-old"}) || used["gateway-old"] != 7 || used["gateway-coder"] < 10_000 {
		t.Errorf("%v", used)
	}
	for _, tt := range []struct {
		what   string
		change func() error
	}{
		{"others can write it", func() error { return os.Chmod(file, 0o666) }},
		{"no numbers", func() error {
			return errors.Join(os.Remove(file), os.WriteFile(file, []byte(`{"gateway-coder":-5}`), 0o600))
		}},
		{"a FIFO", func() error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) }},
		{"a link", func() error { return errors.Join(os.Remove(file), os.Symlink("/etc/passwd", file)) }},
		{"nothing", func() error { return os.Remove(file) }},
	} {
		if err := tt.change(); err != nil {
			t.Fatal(err)
		}
		if used := readMemoryRecord(home); used != nil {
			t.Errorf("%s: %v", tt.what, used)
		}
	}
	testkit.NeedRoot(t)
	if err := os.WriteFile(file, []byte(`{"gateway-coder":1}`), 0o600); err != nil || os.Chown(file, 10000, 10000) != nil {
		t.Fatal(err)
	}
	if used := readMemoryRecord(home); used != nil {
		t.Errorf("the agent's: %v", used)
	}
}

// tenantHome creates a data directory with the home of the profile coder, which has its own user.
func tenantHome(t *testing.T) (data, profile string) {
	t.Helper()
	data = tempDir(t)
	profile = filepath.Join(data, "profiles", "coder")
	must(t, os.MkdirAll(profile, 0o755))
	chownAll(t, profile, tenantID)
	return data, profile
}

// The recorded memory of a gateway includes a daemon of its tenant that has left the tree. Otherwise the next boot would start
// the gateway without enough memory for the daemon.
func TestTheMemoryOfATenantsProcessThatLeftIsRecorded(t *testing.T) {
	testkit.NeedRoot(t)
	data, profile := tenantHome(t)
	startDetachedProcess(t, profile, ":")
	o := Options{Options: boot.Options{Home: data, Tenants: someTenants}}
	must(t, recordMemory(o, []boot.Gateway{{Service: "gateway-coder", Profile: "coder"}}))
	home, err := fsutil.OpenNoLink(data, fsutil.ProcessActor())
	must(t, err)
	defer home.Close()
	if used := readMemoryRecord(home); used["gateway-coder"] < 10_000 {
		t.Errorf("%v", used)
	}
}

// A file of memfd_create(2) must count for one service that has it open, and only once. A file on a disk must not
// count.
func TestTheMemoryInAFileWithoutANameHadNoOwner(t *testing.T) {
	fd, err := unix.MemfdCreate("hidden", unix.MFD_CLOEXEC)
	must(t, err)
	f := os.NewFile(uintptr(fd), "hidden")
	defer f.Close()
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(again)
	disk, err := os.CreateTemp("/var/tmp", "hinit-gone-") // with -short, the test's directory is in memory
	must(t, err)
	defer disk.Close()
	for _, w := range []*os.File{f, disk} {
		_, err := w.Write(make([]byte, 3<<20))
		must(t, err)
	}
	must(t, errors.Join(disk.Sync(), os.Remove(disk.Name())))
	idle := exec.Command("/bin/sleep", "1000")
	must(t, idle.Start())
	defer func() { _ = idle.Process.Kill(); _ = idle.Wait() }()
	got := make(map[string]uint64)
	for _, m := range sharedMemory(t.Context(), Options{}, []boot.Gateway{{Service: "eater", MainPID: os.Getpid()}, {Service: "idle", MainPID: idle.Process.Pid}, {Service: "down"}}, proc.ContainerMemory{}) {
		got[m.Service] = m.Bytes
	}
	if len(got) != 1 || got["eater"] < 3<<20 || got["eater"] >= 6<<20 {
		t.Errorf("%v", got)
	}
}

// /proc/PID/fd of a process whose first thread has ended is empty, but its files in memory must count for its service.
func TestTheFilesOfAProcessWithoutItsFirstThreadHadNoOwner(t *testing.T) {
	cmd := exec.Command(testproc.Argv("share", "8388608", "headless")[0], testproc.Argv("share", "8388608", "headless")[1:]...)
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	testkit.Until(t, "its first thread has ended", func() bool { st, err := procstat.Read(cmd.Process.Pid); return err == nil && st.State == 'Z' })
	found := sharedMemory(t.Context(), Options{}, []boot.Gateway{{Service: "eater", MainPID: cmd.Process.Pid}}, proc.ContainerMemory{})
	if len(found) != 1 || found[0].Bytes < 8<<20 {
		t.Errorf("%+v", found)
	}
}

// All files in memory that a process has open must count, also if there are more than 1,024.
func TestTheMemoryInManyFilesHadNoOwner(t *testing.T) {
	const files = 1100
	for range files {
		fd, err := unix.MemfdCreate("hidden", unix.MFD_CLOEXEC)
		must(t, err)
		f := os.NewFile(uintptr(fd), "hidden")
		defer f.Close()
		_, err = f.Write([]byte{1})
		must(t, err)
	}
	found := sharedMemory(t.Context(), Options{}, []boot.Gateway{{Service: "eater", MainPID: os.Getpid()}}, proc.ContainerMemory{})
	if len(found) != 1 || found[0].Bytes < files*4096 {
		t.Errorf("%+v", found)
	}
}

// The kernel counts files and data in the queue of a socket as memory of no process. Both must cause a note for the service.
func TestTheMemoryInTheQueueOfASocketHadNoOwner(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer func() { _ = errors.Join(unix.Close(fds[0]), unix.Close(fds[1])) }()
	note := func(c proc.ContainerMemory) string {
		for _, m := range sharedMemory(t.Context(), Options{}, []boot.Gateway{{Service: "eater", MainPID: os.Getpid()}}, c) {
			return m.Note
		}
		return ""
	}
	shared, kernel := proc.ContainerMemory{Used: 1 << 40, Shared: 1 << 40}, proc.ContainerMemory{Used: 1 << 40, Kernel: 1 << 39}
	if got := note(shared); got != "" {
		t.Errorf("before: %q", got)
	}
	fd, err := unix.MemfdCreate("hidden", unix.MFD_CLOEXEC)
	must(t, errors.Join(err, unix.Sendmsg(fds[0], []byte{1}, unix.UnixRights(fd), nil, 0), unix.Close(fd)))
	if got := note(shared); !strings.Contains(got, "it may hide memory") {
		t.Errorf("with a file in a queue: %q", got)
	}
	_, _, _, _, err = unix.Recvmsg(fds[1], make([]byte, 1), nil, 0) // the receiver takes no descriptor, so the kernel closes the file
	must(t, err)
	if got := note(kernel); got != "" {
		t.Errorf("with few sockets: %q", got)
	}
	for range manySockets {
		more, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(more)
	}
	if got := note(kernel); !strings.Contains(got, "it may hide memory") {
		t.Errorf("with many sockets: %q", got)
	}
}

// Memory in the buffers of TCP connections must cause a note for their service. 128 connections can hold 1.3 GB. For Unix
// sockets the limit is higher, because an idle browser has 128.
func TestTheMemoryInTheBuffersOfTCPHadNoOwner(t *testing.T) {
	note := func(family, sockets int) string {
		for range sockets {
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(fd)
		}
		found := sharedMemory(t.Context(), Options{}, []boot.Gateway{{Service: "eater", MainPID: os.Getpid()}}, proc.ContainerMemory{Used: 1 << 40, Kernel: 1 << 39})
		return append(found, boot.Measurement{})[0].Note
	}
	if got := note(unix.AF_UNIX, 100) + note(unix.AF_INET, 10); got != "" {
		t.Errorf("with a browser: %q", got)
	}
	if got := note(unix.AF_INET6, 64); !strings.Contains(got, "it may hide memory") {
		t.Errorf("with 64 TCP sockets: %q", got)
	}
}

// A daemon that docker exec left behind has shared memory. The memory counts for the gateway whose profile has the daemon's
// user.
func TestTheSharedMemoryOfATenantsDaemonHadNoOwner(t *testing.T) {
	testkit.NeedRoot(t)
	data, _ := tenantHome(t)
	cmd := exec.Command(testproc.Argv("share", "8388608", "open")[0], testproc.Argv("share", "8388608", "open")[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: tenantID, Gid: tenantID}}
	out, err := cmd.StdoutPipe()
	must(t, errors.Join(err, cmd.Start()))
	defer func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() }()
	var word string
	_, err = fmt.Fscan(out, &word)
	must(t, err)
	list := []boot.Gateway{{Service: "run-1", Profile: "coder"}, {Service: "gateway-coder", Profile: "coder"}, {Service: "run-2", Profile: "coder"}}
	found := sharedMemory(t.Context(), Options{Options: boot.Options{Home: data, Tenants: someTenants}}, list, proc.ContainerMemory{})
	if len(found) != 1 || found[0].Service != "gateway-coder" || found[0].Bytes < 8<<20 {
		t.Errorf("%+v", found)
	}
}

// The shared memory of all processes of an agent must count, and memory that several processes share must count once. If a
// process forbids examination while memory is hidden, its service gets a note.
func TestTheSharedMemoryOfManyProcessesHadNoOwner(t *testing.T) {
	testkit.NeedRoot(t)
	const size = 8 << 20
	start := func(service string, uid uint32, argv ...string) boot.Gateway {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.StdoutPipe()
		must(t, errors.Join(err, cmd.Start()))
		t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() })
		for range strings.Count(strings.Join(argv, " "), "&") + 1 {
			var word string
			_, err := fmt.Fscan(out, &word)
			must(t, err)
		}
		return boot.Gateway{Service: service, MainPID: cmd.Process.Pid, RunNumber: uint64(cmd.Process.Pid)}
	}
	share := func(how string) []string { return testproc.Argv("share", strconv.Itoa(size), how) }
	self, err := os.Executable()
	must(t, err)
	parent := share("parent")
	list := []boot.Gateway{
		start("pair", 0, parent...),
		start("many", 0, "/bin/sh", "-c", `"$0" "$@" & "$0" "$@" & exec "$0" "$@"`, self, parent[1], parent[2], parent[3]),
		start("hider", tenantID, share("hidden")...),
	}
	for _, shared := range []uint64{1 << 20, 1 << 40} {
		got := make(map[string]boot.Measurement)
		for _, m := range sharedMemory(t.Context(), Options{}, list, proc.ContainerMemory{Used: 1 << 40, Shared: shared}) {
			got[m.Service] = m
		}
		if n := got["pair"].Bytes; n < size || n > size+size/2 {
			t.Errorf("two processes with %d bytes have %d", size, n)
		}
		if n := got["many"].Bytes; n < 3*size || n > 4*size {
			t.Errorf("three pairs of processes with %d bytes have %d", size, n)
		}
		if note := got["hider"].Note; (note != "") != (shared > 1<<20) || got["pair"].Note+got["many"].Note != "" || got["many"].Run != list[1].RunNumber {
			t.Errorf("with %d bytes of shared memory: %+v", shared, got)
		}
	}
}
