package volume

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/procstat"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// Each row says which profiles must be confined to fewer processors. The container has two processors, and a confined profile
// gets one.
func TestWhoGetsFewerProcessors(t *testing.T) {
	of := func(name string, used float64, waits bool) *tenant {
		out := &tenant{Gateway: boot.Gateway{Service: name}, cpuUsed: used}
		if waits {
			out.cpuWait = 1
		}
		return out
	}
	heavy := func(t *tenant, weight int) *tenant { t.CPUWeight = weight; return t }
	confined := func(t *tenant) *tenant { t.confined = true; return t }
	for _, tt := range []struct {
		what    string
		calm    bool
		tenants []*tenant
		want    []string
	}{
		{"one takes all and another one gets nothing", false, []*tenant{of("a", 1.9, true), of("b", 0.02, true)}, []string{"a"}},
		{"there are processors", true, []*tenant{of("a", 1.9, true), of("b", 0.02, true)}, nil},
		{"the other one does not want more", false, []*tenant{of("a", 1.9, true), of("b", 0.02, false)}, nil},
		{"it is alone", false, []*tenant{of("a", 1.9, true)}, nil},
		{"they share", false, []*tenant{of("a", 1.1, true), of("b", 0.8, true)}, nil},
		{"two take all from a third", false, []*tenant{of("a", 0.97, true), of("b", 0.97, true), of("c", 0.02, true)}, []string{"a", "b"}},
		{"its weight gives it more", false, []*tenant{heavy(of("a", 1.8, true), 1000), heavy(of("b", 0.1, true), 100)}, nil},
		{"its weight gives it less", false, []*tenant{heavy(of("a", 1, true), 10), heavy(of("b", 0.4, true), 1000)}, []string{"a"}},
		{"a confined one stays confined", false, []*tenant{confined(of("a", 0.9, true)), of("b", 0.3, true)}, []string{"a"}},
		{"a confined one rests", false, []*tenant{confined(of("a", 0.1, true)), of("b", 0.9, true)}, nil},
		{"the processors are free again", true, []*tenant{confined(of("a", 0.9, true)), of("b", 0.3, true)}, nil},
		{"the other one has left", false, []*tenant{confined(of("a", 0.9, true)), of("b", 0, false)}, nil},
		{"the other one takes more", false, []*tenant{confined(of("a", 0.8, true)), of("b", 1.2, true)}, nil},
		{"a confined one confines none", false, []*tenant{confined(of("a", 0.1, true)), of("b", 1.9, true)}, nil},
	} {
		var got []string
		for who, is := range greedyTenants(tt.tenants, !tt.calm, 1) {
			if is {
				got = append(got, who.Service)
			}
		}
		if slices.Sort(got); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}

func TestTheGatewayWithMostPortsIsRestarted(t *testing.T) {
	of := func(name string, ports int, hides bool) *tenant {
		return &tenant{Gateway: boot.Gateway{Service: name}, socketUsage: diskUsage{sockets: ports, ports: ports, hidesFiles: hides}}
	}
	const ports = 28_232
	for _, tt := range []struct {
		what           string
		sockets, ports int
		tenants        []*tenant
		want           string
	}{
		{"one has most", 22_000, ports, []*tenant{of("b", 500, false), of("a", 20_000, false)}, "a"},
		{"another container has them", 22_000, ports, []*tenant{of("b", 500, false)}, ""},
		{"there are free ones", 15_000, ports, []*tenant{of("a", 20_000, false)}, ""},
		{"the kernel tells nothing", 0, 0, []*tenant{of("a", 20_000, false)}, ""},
		{"there is no profile", 22_000, ports, nil, ""},
		{"one hides them in a queue", 28_000, ports, []*tenant{of("a", 7_100, false), of("b", 10, true)}, "b"},
		{"one may hide a few", 28_000, ports, []*tenant{of("b", 70, true), of("a", 27_000, false)}, "a"},
	} {
		count := func() (seen int) {
			for _, who := range tt.tenants {
				seen += who.socketUsage.sockets
			}
			return seen
		}
		got := ""
		if hog := portHog(tt.tenants, tt.sockets, tt.ports, count); hog != nil {
			got = hog.Service
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}

// The profile with most terminals must be restarted before the machine has no more terminals.
func TestAProfileTookAllPseudoterminals(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	for i := range 40 {
		uid := map[bool]int{true: tenantID, false: tenantID + 1}[i < 30]
		path := filepath.Join(dir, strconv.Itoa(i))
		must(t, errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, uid, uid)))
	}
	first, other := &tenant{uid: tenantID}, &tenant{uid: tenantID + 1}
	for _, tt := range []struct {
		used, allowed int
		tenants       []*tenant
		want          *tenant
	}{
		{90, 100, []*tenant{other, first}, first},
		{70, 100, []*tenant{other, first}, nil},
		{90, 100, []*tenant{other}, nil},
		{9000, 10000, []*tenant{other, first}, nil},
		{0, 0, []*tenant{other, first}, nil},
	} {
		if got := terminalHog(tt.tenants, tt.used, tt.allowed, dir); got != tt.want {
			t.Errorf("with %d of %d used, %+v is to be restarted", tt.used, tt.allowed, got)
		}
	}
}

// A tenant puts its sockets into the queue of another profile's socket. hinit restarted the other profile, but a profile must
// be restarted only for its own sockets.
func TestAProfileWithManyFilesWasRestartedForThePortsOfAnother(t *testing.T) {
	testkit.NeedRoot(t)
	data, profile := tenantHome(t)
	startDetachedProcess(t, profile, "exec bash -c 'exec 9000</dev/null; echo done; exec sleep 1000'") // grows the table of descriptors
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer func() { _ = errors.Join(unix.Close(fds[0]), unix.Close(fds[1])) }()
	for range 3 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
	}
	files := &tenant{uid: tenantID, Gateway: boot.Gateway{Service: "gateway-coder", Profile: "coder"}}
	queue := &tenant{Gateway: boot.Gateway{Service: "queue", MainPID: os.Getpid()}}
	o := Options{Options: boot.Options{Home: data, Tenants: someTenants}}
	count := func() int {
		files.socketUsage, queue.socketUsage = diskUsage{}, diskUsage{}
		return countSockets(o, []boot.Gateway{files.Gateway, queue.Gateway}, []*tenant{files, queue})
	}
	if seen := count(); queue.socketUsage.hidesFiles || queue.socketUsage.ports < 3 || queue.socketUsage.sockets < 5 || files.socketUsage.ports != 0 || seen != queue.socketUsage.sockets {
		t.Errorf("%d are seen: %+v, %+v", seen, queue.socketUsage, files.socketUsage)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, errors.Join(err, unix.Sendmsg(fds[0], []byte{1}, unix.UnixRights(fd), nil, 0), unix.Close(fd)))
	if got := portHog([]*tenant{files, queue}, 28_000, 28_232, count); got != queue || got.socketUsage.ports < 20_000 {
		t.Errorf("%+v", got)
	}
}

// Confining all processes of a user must not need CAP_SYS_NICE, and neither must the end of the limit.
func TestAllProcessesOfAUserGetFewerProcessors(t *testing.T) {
	every, few := allAndOneProcessor(t)
	if every.Count() < 2 {
		testkit.SkipOrFail(t, "needs two processors")
	}
	start := func(uid uint32) *exec.Cmd {
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const uid = 1_000_012_321
	own, other := start(uid), start(uid+1)
	for _, set := range []*unix.CPUSet{&few, &every} {
		setAffinity(uid, set)
		var has, others unix.CPUSet
		_, _ = unix.SchedGetaffinity(own.Process.Pid, &has), unix.SchedGetaffinity(other.Process.Pid, &others)
		if has != *set || others != every {
			t.Errorf("it has %d processors, the other user %d", has.Count(), others.Count())
		}
	}
	if os.Geteuid() != 0 {
		t.Error("a thread of this process has another user now")
	}
}

// A thread in state R that never waits must not count as waiting. Otherwise an agent could have another profile confined while
// processors are idle. The thread has a real-time policy, so the test is short.
func TestASpinningThreadHadABusyProfileConfined(t *testing.T) {
	every, one := allAndOneProcessor(t)
	const uid, other = 1_000_012_322, 1_000_012_321
	measure := func(every, fewer *unix.CPUSet) *tenant {
		who := &tenant{uid: uid}
		measureCPUUse(t.Context(), map[uint32]*tenant{uid: who}, every, fewer)
		return who
	}
	stop := startBusyProcess(t, uid, &one, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1})
	if who := measure(&one, &unix.CPUSet{}); who.cpuUsed < 0.5 || who.cpuWait >= 0.1 { // the kernel reserves 5 % of the time for other processes
		t.Errorf("it runs on %.2f processors, and waits for %.2f", who.cpuUsed, who.cpuWait)
	}
	stop()
	startBusyProcess(t, uid, &one, nil)
	startBusyProcess(t, other, &one, nil)
	// The kernel counts a wait at its end, so one measurement may miss it.
	testkit.Until(t, "beside another one, it waits", func() bool { return measure(&one, &unix.CPUSet{}).cpuWait >= minCPUWait })
	if who := measure(&every, &unix.CPUSet{}); every != one && who.cpuWait >= minCPUWait {
		t.Errorf("a thread that may use one processor of several waits for %.2f", who.cpuWait)
	}
	testkit.Until(t, "a thread that hinit has confined waits", func() bool {
		who := measure(&every, &one)
		return who.cpuWait >= minCPUWait && who.confined
	})
}

// If an agent ties its own threads to the processors of confined profiles, their waits must not count. Otherwise hinit would
// confine other profiles.
func TestAnAgentThatConfinedItsThreadsHadOthersConfined(t *testing.T) {
	every, one := allAndOneProcessor(t)
	if every == one {
		testkit.SkipOrFail(t, "needs two processors")
	}
	const uid = 1_000_012_326
	argv := testproc.Argv("eat", "1")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.StdoutPipe()
	must(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
	must(t, err)
	last, err := strconv.Atoi(threads[len(threads)-1].Name())
	if must(t, err); last == cmd.Process.Pid {
		t.Fatal("the process has one thread")
	}
	must(t, unix.SchedSetaffinity(last, &one))
	who := &tenant{uid: uid}
	if measureCPUUse(t.Context(), map[uint32]*tenant{uid: who}, &every, &one); !who.confined {
		t.Errorf("%+v", who)
	}
}

// Processes that run only for a moment and are reaped by the kernel count as use of processors. Otherwise a tenant could use
// all processors and be measured as idle.
func TestProcessesThatRanForAMomentCountedAsIdle(t *testing.T) {
	every, _ := allAndOneProcessor(t)
	const uid = 1_000_012_327
	argv := testproc.Argv("moments")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Setpgid: true}
	startRealtime(t, cmd)
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	testkit.Until(t, "they are seen to use a good part of a processor", func() bool {
		who := &tenant{uid: uid}
		measureCPUUse(t.Context(), map[uint32]*tenant{uid: who}, &every, &unix.CPUSet{})
		return who.cpuUsed > 0.3
	})
}

// A process that started during the measurement must count with the time of all its threads, not as one processor at
// most.
func TestANewProcessWithManyThreadsCountedAsOneProcessor(t *testing.T) {
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	p := procstat.Stat{PID: 1 << 30, CPU: 8 * procstat.TicksPerSecond, Threads: 8, Start: uint64(now.Nano())*procstat.TicksPerSecond/1e9 - procstat.TicksPerSecond}
	if got := processorsUsed(p, procstat.Stat{}, time.Second); got < 6 || got > 8 {
		t.Errorf("it has used %.2f processors", got)
	}
	if p.Threads = 1; processorsUsed(p, procstat.Stat{}, time.Second) > 1 {
		t.Error("one thread has used more than one processor")
	}
}

// A process that ends before the last sample of the measurement must count with the time that it has used.
func TestAProcessThatEndedDuringTheMeasurementCountedAsIdle(t *testing.T) {
	every, _ := allAndOneProcessor(t)
	const uid = 1_000_012_328
	testkit.Until(t, "it is seen to be active", func() bool {
		stop := startBusyProcess(t, uid, &every, nil)
		gone := make(chan struct{})
		time.AfterFunc(cpuMeasureTime*9/10, func() { stop(); close(gone) })
		who, idle := &tenant{uid: uid}, &tenant{cpuWait: 1}
		measureCPUUse(t.Context(), map[uint32]*tenant{uid: who}, &every, &unix.CPUSet{})
		<-gone
		return greedyTenants([]*tenant{who, idle}, true, 1)[who]
	})
}

// startRealtime starts a process whose threads and children have a real-time policy, so that they never wait for other
// processes.
func startRealtime(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	errs := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		errs <- errors.Join(err, cmd.Start())
	}()
	must(t, <-errs)
}

// A wait counts with at most the time of the measurement. Otherwise a wait of a minute that ends during the measurement would
// count as 60 waiting threads.
func TestALongWaitCountedAsManyThreads(t *testing.T) {
	old, now := threadTime{ran: time.Second, runnable: true}, threadTime{ran: 2 * time.Second, waited: time.Minute}
	if got := now.waitedSince(old, time.Second); got != time.Second {
		t.Errorf("it waited for %s of a second", got)
	}
}

// A process with a raised nice value or an idle policy waits whenever another process runs, so its waits must not count.
// Otherwise a profile could have others confined.
func TestANicerProcessHadOthersConfined(t *testing.T) {
	_, one := allAndOneProcessor(t)
	const uid, nicer, idle = 1_000_012_323, 1_000_012_324, 1_000_012_325
	startBusyProcess(t, uid, &one, nil)
	startBusyProcess(t, nicer, &one, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Nice: 19})
	startBusyProcess(t, idle, &one, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE})
	waits := func(uid uint32, nice int) float64 {
		who := &tenant{uid: uid, Gateway: boot.Gateway{Nice: nice}}
		measureCPUUse(t.Context(), map[uint32]*tenant{uid: who}, &one, &unix.CPUSet{})
		return who.cpuWait
	}
	if got := waits(nicer, 0); got > 0 {
		t.Errorf("a process that has raised its nice value waits for %.2f processors", got)
	}
	if got := waits(idle, 19); got > 0 {
		t.Errorf("a process that wants idle processors only waits for %.2f", got)
	}
	testkit.Until(t, "a process with the nice value of the configuration waits", func() bool { return waits(nicer, 19) >= minCPUWait })
}

// allAndOneProcessor returns all processors of this process, and the first of them alone.
func allAndOneProcessor(t *testing.T) (every, one unix.CPUSet) {
	t.Helper()
	if testing.Short() {
		t.Skip("keeps processors busy for seconds")
	}
	testkit.NeedRoot(t)
	if err := unix.SchedGetaffinity(0, &every); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(every) * 64 {
		if every.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	return every, one
}

// startBusyProcess starts a process of user uid that runs all the time on the processors in cpus, with the scheduling attributes
// attr. stop ends the process.
func startBusyProcess(t *testing.T, uid uint32, cpus *unix.CPUSet, attr *unix.SchedAttr) (stop func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(stop)
	if attr != nil && unix.SchedSetAttr(cmd.Process.Pid, attr, 0) != nil {
		testkit.SkipOrFail(t, "needs CAP_SYS_NICE")
	}
	if err := unix.SchedSetaffinity(cmd.Process.Pid, cpus); err != nil {
		t.Fatal(err)
	}
	return stop
}
