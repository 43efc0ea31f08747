package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// Numbers of the benchmarks of floors.
const (
	commandRounds   = 100
	startedServices = 100
	restSpan        = 65 * time.Second
)

// BenchmarkFloorOfCommands measures processor time and page faults of commands, and of an empty Go program and /bin/true, which are their
// floors. They run in turns, and medians count.
func BenchmarkFloorOfCommands(b *testing.B) {
	dir, hinit := floorDir(b)
	empty := goProgram(b, dir, "empty")
	pid := startServices(b, hinit, dir, 1, "0:0")
	status, s6 := []string{hinit, "status", "s0"}, filepath.Join(dir, "s6-svc")
	if err := os.Symlink("hinit", s6); err != nil {
		b.Fatal(err)
	}
	b.Setenv("HINIT_RUNTIME_DIR", dir)
	awaitChildren(b, pid, 1)
	all := []struct {
		name string
		argv []string
	}{
		{"true", []string{"/bin/true"}},
		{"empty-Go", []string{empty}},
		{"version", []string{hinit, "version"}},
		{"tools-version", []string{hinit + "-tools", "version"}},
		{"status-of-one", status},
		{"status-in-Go", append(slices.Clone(status), "--json")},
		{"s6-svstat", []string{"/usr/bin/s6-svstat", "/nowhere"}}, // This command fails after its start, which takes most of its time.
	}
	for b.Loop() {
		cpu, faults := make(map[string][]float64), make(map[string][]float64)
		for range commandRounds {
			for _, c := range all {
				cmd := exec.Command(c.argv[0], c.argv[1:]...)
				_ = cmd.Run() // s6-svstat fails, and may not be installed.
				if cmd.ProcessState == nil {
					continue
				}
				use := cmd.ProcessState.SysUsage().(*syscall.Rusage)
				cpu[c.name] = append(cpu[c.name], float64(use.Utime.Nano()+use.Stime.Nano())/1e6)
				faults[c.name] = append(faults[c.name], float64(use.Minflt))
			}
		}
		for name := range cpu {
			b.ReportMetric(median(cpu[name]), name+"-ms")
			b.ReportMetric(median(faults[name]), name+"-faults")
		}
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkFloorOfMemory measures the memory (PSS) of PID 1 with ten services at rest, and of a Go program that only has as many
// threads.
func BenchmarkFloorOfMemory(b *testing.B) {
	dir, hinit := floorDir(b)
	idle := goProgram(b, dir, "idle")
	for b.Loop() {
		pid := startServices(b, hinit, dir, 10, "0:0")
		awaitChildren(b, pid, 10)
		time.Sleep(settleTime)
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(pss(b, pid), "hinit-MB")
		for name, threads := range map[string]int{"Go-MB": 1, "Go-with-the-threads-MB": len(tasks) - 3} { // The runtime itself creates three threads.
			cmd := exec.Command(idle, strconv.Itoa(threads))
			in, err1 := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			if err1 != nil || err2 != nil || cmd.Start() != nil {
				b.Fatal("cannot start the idle program")
			}
			_, _ = io.Copy(io.Discard, out) // Wait until the program idles.
			b.ReportMetric(pss(b, cmd.Process.Pid), name)
			in.Close()
			_ = cmd.Wait()
		}
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkFloorOfStarts measures the processor time for one more service: of the supervisor, and of the new process until its
// program waits. The floor is a loop that only forks and executes.
func BenchmarkFloorOfStarts(b *testing.B) {
	testkit.NeedRoot(b)
	dir, hinit := floorDir(b)
	homes := 0
	supervised := func(user, more string) float64 {
		took := func(n int) float64 {
			homes++
			home := filepath.Join(dir, strconv.Itoa(homes))
			if err := os.Mkdir(home, 0o755); err != nil {
				b.Fatal(err)
			}
			pid := startServices(b, hinit, home, n, user+more)
			children := awaitChildren(b, pid, n)
			time.Sleep(settleTime)
			return processorTimeMS(b, append(children, pid)...)
		}
		return (took(startedServices+1) - took(1)) / startedServices
	}
	for b.Loop() {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			b.Fatal(err)
		}
		files := []uintptr{null.Fd(), null.Fd(), null.Fd()}
		b.ReportMetric(timeStarts(b, &syscall.ProcAttr{Files: files}), "loop-ms")
		b.ReportMetric(timeStarts(b, &syscall.ProcAttr{Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}), "loop-session-ms")
		b.ReportMetric(timeStarts(b, &syscall.ProcAttr{Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: agentID, Gid: agentID}}}), "loop-session-user-ms")
		b.ReportMetric(supervised("0:0", ", log: false"), "hinit-ms")
		b.ReportMetric(supervised("0:0", ""), "hinit-log-ms")
		b.ReportMetric(supervised(fmt.Sprintf("%d:%d", agentID, agentID), ""), "hinit-log-user-ms")
		b.ReportMetric(0, "ns/op")
		null.Close()
	}
}

// BenchmarkRest counts the context switches of PID 1 in 65 s, with 10 and 500 idle profiles. The Go
// runtime itself causes two a minute.
func BenchmarkRest(b *testing.B) {
	testkit.NeedRoot(b)
	dir, hinit := floorDir(b)
	for b.Loop() {
		pids := map[int]int{}
		for _, n := range []int{10, 500} {
			pids[n] = startProfiles(b, hinit, filepath.Join(dir, strconv.Itoa(n)), n)
			awaitChildren(b, pids[n], n)
		}
		time.Sleep(2 * settleTime)
		before := map[int]int{}
		for n, pid := range pids {
			before[n] = switches(b, pid)
		}
		time.Sleep(restSpan)
		for n, pid := range pids {
			b.ReportMetric(float64(switches(b, pid)-before[n]), fmt.Sprintf("switches-%d", n))
		}
		b.ReportMetric(0, "ns/op")
	}
}

// floorDir returns a new directory with the shipped hinit and hinit-tools, and hinit's path.
func floorDir(b *testing.B) (dir, hinit string) {
	b.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "hb-") //nolint:usetesting // every user can enter it
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), testkit.Build(dir, "hinit")); err != nil {
		b.Fatal(err)
	}
	return dir, filepath.Join(dir, "hinit")
}

// goProgram builds a program of this directory, and returns its path.
func goProgram(b *testing.B, dir, name string) string {
	b.Helper()
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "hinit/test/bench/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return path
}

// startServices starts hinit run with n idle services, and returns its pid. user holds further keys
// of each service.
func startServices(b *testing.B, hinit, dir string, n int, user string) int {
	b.Helper()
	var file strings.Builder
	fmt.Fprintf(&file, "home: %s\ncontrol: {socket: %s/control.sock}\nservices:\n", dir, dir)
	for i := range n {
		fmt.Fprintf(&file, "  s%d: {command: [sleep, \"10000\"], user: %s}\n", i, user)
	}
	return startProgram(b, dir, file.String(), hinit, "run", "-c", dir+"/hinit.yaml")
}

// startProfiles starts hinit as an init with n idle gateways, and returns its pid.
func startProfiles(b *testing.B, hinit, dir string, n int) int {
	b.Helper()
	for i := range n {
		home := dir + "/data"
		if i > 0 {
			home += fmt.Sprintf("/profiles/p%d", i)
		}
		if err := os.MkdirAll(home, 0o755); err != nil {
			b.Fatal(err)
		}
		for name, text := range map[string]string{"SOUL.md": "A profile.\n", "gateway_state.json": `{"desired_state":"running"}`} {
			if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	config := fmt.Sprintf(`home: %[1]s/data
agent: {user: root, binary: /bin/sleep, gateway: [sleep, "10000"], gateway_default: [sleep, "10000"], ready: up, profile_create: []}
control: {socket: %[1]s/control.sock}
boot: {hooks: []}
`, dir)
	b.Setenv("HINIT_CONFIG", dir+"/hinit.yaml")
	return startProgram(b, dir, config, hinit, "init", "gateway", "run")
}

// startProgram starts a program with a configuration, and returns its pid. The program ends with the
// benchmark.
func startProgram(b *testing.B, dir, config string, argv ...string) int {
	b.Helper()
	if err := os.WriteFile(dir+"/hinit.yaml", []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// awaitChildren waits until a process has n children that execute sleep, and returns their pids.
func awaitChildren(b *testing.B, pid, n int) (sleepers []int) {
	b.Helper()
	for until := time.Now().Add(later); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		sleepers = sleepers[:0]
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, list := range lists {
			data, _ := os.ReadFile(list) // The thread may have ended.
			for word := range strings.FieldsSeq(string(data)) {
				if name, _ := os.ReadFile("/proc/" + word + "/comm"); string(name) == "sleep\n" {
					child, _ := strconv.Atoi(word)
					sleepers = append(sleepers, child)
				}
			}
		}
		if len(sleepers) == n {
			return sleepers
		}
	}
	b.Fatalf("%d of %d services run", len(sleepers), n)
	return nil
}

// timeStarts starts sleep many times, and returns the processor time of one start in ms.
func timeStarts(b *testing.B, attr *syscall.ProcAttr) float64 {
	b.Helper()
	before := processorTimeMS(b, os.Getpid())
	children := make([]int, startedServices)
	for i := range children {
		var err error
		if children[i], err = syscall.ForkExec("/bin/sleep", []string{"sleep", "10000"}, attr); err != nil {
			b.Fatal(err)
		}
	}
	took := processorTimeMS(b, os.Getpid()) - before
	time.Sleep(time.Second)
	took += processorTimeMS(b, children...)
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL)
		_, _ = syscall.Wait4(child, nil, 0, nil)
	}
	return took / startedServices
}

// processorTimeMS returns the processor time of all threads of processes, in ms.
func processorTimeMS(b *testing.B, pids ...int) (ms float64) {
	b.Helper()
	for _, pid := range pids {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil || len(tasks) == 0 {
			b.Fatalf("process %d is gone (%v)", pid, err)
		}
		for _, task := range tasks {
			data, _ := os.ReadFile(task) // The thread may have ended.
			ns, _ := strconv.ParseFloat(string(data[:max(bytes.IndexByte(data, ' '), 0)]), 64)
			ms += ns / 1e6
		}
	}
	return ms
}

// pss returns the proportional set size of a process, in MB.
func pss(b *testing.B, pid int) float64 {
	b.Helper()
	return float64(numberField(b, fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")) / 1024
}
