package top_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// maxTopCost is the maximum processor time a second for 500 idle services, in units of one reading
// of all their process states.
const (
	maxTopCost  = 8
	maxPID1Cost = 3
	costTime    = 4 * time.Second
)

// TestFiveHundredServicesCostLittle measures the processor time of hinit top and PID 1. One of
// three tries must pass.
func TestFiveHundredServicesCostLittle(t *testing.T) {
	t.Parallel()
	var services strings.Builder
	services.WriteString("services:\n")
	for i := range 500 {
		fmt.Fprintf(&services, "  s%03d: {command: [/bin/sleep, '1000000']}\n", i)
	}
	h := newContainer(t, services.String())
	h.boot()
	w := h.top(120, 40)
	w.awaitScreen("501 of 502 well", "mem ")
	init, top := h.cmd.Process.Pid, 0
	for pid := range strings.FieldsSeq(tmux(t, "-S", w.name, "list-panes", "-F", "#{pane_pid}")) {
		children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		if err != nil {
			t.Fatal(err)
		}
		top, _ = strconv.Atoi(strings.TrimSpace(string(children)))
	}
	var output string
	for range 3 {
		unit := timeReadingAll(t, init)
		begin, initBefore, topBefore := time.Now(), processorTime(t, init), processorTime(t, top)
		<-time.After(costTime)
		passed := time.Since(begin).Seconds()
		initCost, topCost := (processorTime(t, init)-initBefore).Seconds()/passed, (processorTime(t, top)-topBefore).Seconds()/passed
		output = fmt.Sprintf("hinit top took %.2f %% of a processor, PID 1 %.2f %%; to read all processes once takes %.1f ms", topCost*100, initCost*100, unit*1000)
		if t.Log(output); topCost <= maxTopCost*unit && initCost <= maxPID1Cost*unit {
			return
		}
	}
	t.Error(output)
}

// timeReadingAll returns the processor time of one reading of all children's states, in seconds.
func timeReadingAll(t *testing.T, parent int) float64 {
	t.Helper()
	const times = 20
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent)) // Each thread has its own list of children.
	var children []string
	for _, list := range lists {
		text, _ := os.ReadFile(list) // The thread may have ended.
		children = append(children, strings.Fields(string(text))...)
	}
	if err != nil || len(children) < 500 {
		t.Fatalf("PID 1 has %d children (%v)", len(children), err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_THREAD, &before)
	for range times {
		for _, pid := range children {
			if _, bad := os.ReadFile("/proc/" + pid + "/stat"); bad != nil {
				t.Fatal(bad)
			}
		}
	}
	if err = errors.Join(err, unix.Getrusage(unix.RUSAGE_THREAD, &after)); err != nil {
		t.Fatal(err)
	}
	cost := func(r unix.Rusage) float64 { return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9 }
	return (cost(after) - cost(before)) / times
}

func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime (proc_pid_stat(5)).
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
