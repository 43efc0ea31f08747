package bench

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	checkedServices, checksEach = 20, 25 // These make 500 checks.
	// Period of each check, warm-up time and measuring time.
	checkPeriod, checkWarm, checkFor = 10 * time.Second, 25 * time.Second, 60 * time.Second
)

// BenchmarkFiveHundredChecks measures the cost of 500 tcp checks every 10 s: memory, thread
// wake-ups and processor time of hinit. The costs of the same services without checks are
// subtracted.
func BenchmarkFiveHundredChecks(b *testing.B) {
	dir := b.TempDir()
	hinit, _ := binaries(b, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	dialer := exec.Command(goProgram(b, dir, "dialer"), port)
	if err := dialer.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = dialer.Process.Kill() }() // The process may have ended.
	for b.Loop() {
		with, without := supervise(b, hinit, filepath.Join(dir, "with"), port), supervise(b, hinit, filepath.Join(dir, "without"), "")
		time.Sleep(checkWarm)
		wakes, others, dialing := switches(b, with), switches(b, without), switches(b, dialer.Process.Pid)
		cpu, otherCPU, dialingCPU := processorTimeMS(b, with), processorTimeMS(b, without), processorTimeMS(b, dialer.Process.Pid)
		time.Sleep(checkFor)
		wakes, others, dialing = switches(b, with)-wakes, switches(b, without)-others, switches(b, dialer.Process.Pid)-dialing
		cpu, otherCPU, dialingCPU = processorTimeMS(b, with)-cpu, processorTimeMS(b, without)-otherCPU, processorTimeMS(b, dialer.Process.Pid)-dialingCPU
		b.ReportMetric((cpu-otherCPU)/checkFor.Seconds(), "cpu-ms/s")
		b.ReportMetric(dialingCPU/checkFor.Seconds(), "dialer-cpu-ms/s")
		b.ReportMetric(float64(dialing)/checkFor.Seconds(), "dialer-switches/s")
		b.ReportMetric(float64(anonymous(b, with)-anonymous(b, without))/1024, "MiB")
		b.ReportMetric(float64(wakes-others)/checkFor.Seconds(), "switches/s")
		b.ReportMetric(0, "ns/op")
	}
}

func supervise(b *testing.B, hinit, dir, port string) int {
	b.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	var file strings.Builder
	fmt.Fprintf(&file, "home: %s\ncontrol: {socket: %s/s}\nservices:\n", dir, dir)
	for s := range checkedServices {
		fmt.Fprintf(&file, "  s%d:\n    command: [sleep, \"1000\"]\n    checks:\n", s)
		for c := range checksEach {
			if port != "" {
				fmt.Fprintf(&file, "      - {kind: alive, name: c%d, tcp: {port: %s}, period: %s, initial_delay: %dms}\n", c, port, checkPeriod, (s*checksEach+c)*20)
			}
		}
		if port == "" {
			fmt.Fprintln(&file, "      []")
		}
	}
	path := filepath.Join(dir, "hinit.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(hinit, "run", "-c", path)
	cmd.Stderr = os.Stderr
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

// anonymous returns the anonymous memory of a process, in KiB.
func anonymous(b *testing.B, pid int) int {
	b.Helper()
	return numberField(b, fmt.Sprintf("/proc/%d/status", pid), "RssAnon:")
}

// switches counts the voluntary context switches of all threads of a process.
func switches(b *testing.B, pid int) (sum int) {
	b.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		b.Fatalf("process %d is gone (%v)", pid, err)
	}
	for _, task := range tasks {
		sum += numberField(b, task, "voluntary_ctxt_switches:")
	}
	return sum
}

func numberField(b *testing.B, path, name string) int {
	b.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := bytes.Cut(data, []byte("\n"+name))
	n, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	if err != nil {
		b.Fatal(err)
	}
	return n
}
