package top_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The limits for 500 services at rest, in parts of a processor.
const (
	costOfTop  = 0.02
	costOfPID1 = 0.005
	costTime   = 4 * time.Second
)

// TestFiveHundredServicesCostLittle takes the processor time of both sides while the screen is shown. Other work of the machine
// affects it only through the caches, so one of three tries has to pass.
func TestFiveHundredServicesCostLittle(t *testing.T) {
	t.Parallel()
	var services strings.Builder
	services.WriteString("services:\n")
	for i := range 500 {
		fmt.Fprintf(&services, "  s%03d: {command: [/bin/sleep, '1000000']}\n", i)
	}
	h := newHouse(t, services.String())
	h.boot()
	w := h.top(120, 40)
	w.shows("501 of 502 well", "mem ")
	init, top := h.cmd.Process.Pid, 0
	for pid := range strings.FieldsSeq(tmux(t, "-S", w.name, "list-panes", "-F", "#{pane_pid}")) {
		children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		if err != nil {
			t.Fatal(err)
		}
		top, _ = strconv.Atoi(strings.TrimSpace(string(children)))
	}
	var said string
	for range 3 {
		begin, initBefore, topBefore := time.Now(), used(t, init), used(t, top)
		<-time.After(costTime)
		passed := time.Since(begin).Seconds()
		initCost, topCost := (used(t, init)-initBefore).Seconds()/passed, (used(t, top)-topBefore).Seconds()/passed
		said = fmt.Sprintf("hinit top took %.2f %% of a processor, PID 1 %.2f %%", topCost*100, initCost*100)
		if t.Log(said); topCost <= costOfTop && initCost <= costOfPID1 {
			return
		}
	}
	t.Error(said)
}

// used is the processor time of a process.
func used(t *testing.T, pid int) time.Duration {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime (proc_pid_stat(5))
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
