package proc

import (
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
	"hinit/internal/testproc"
)

func TestAMeterMeasuresWholeTrees(t *testing.T) {
	table := newTable(t)
	// A child in the tree and one that has left group, session and parent.
	const script = `a=$(head -c 4000000 /dev/zero | tr '\0' x); sh -c 'b=$(head -c 8000000 /dev/zero | tr "\0" x); echo child; sleep 1000 & wait' &
		setsid sh -c 'sh -c "c=\$(head -c 8000000 /dev/zero | tr \"\\0\" x); echo away; sleep 1000 & wait" & exit'
		wait`
	pid, out := spawn(t, table, Spec{ID: 1, Name: "big", Argv: []string{"/bin/sh", "-c", script}})
	small, quiet := spawn(t, table, Spec{ID: 2, Name: "small", Argv: []string{"/bin/sh", "-c", "echo up; exec sleep 1000"}})
	line(t, out)
	line(t, out)
	line(t, quiet)
	got := NewMeter().Measure([]int{pid, small, 1 << 30})
	if got[0].Bytes < 20e6 || got[0].Bytes > 120e6 || got[1].Bytes > 4e6 || got[2].Bytes != 0 {
		t.Errorf("they have %v bytes", got)
	}
	for _, id := range []uint64{1, 2} {
		table.SignalTree(id, int(unix.SIGKILL))
		exitOf(t, table, id)
	}
}

// An agent filled shared memory, and hinit ended other services, because the agent seemed to have nearly none. The memory that two
// of its processes map counts once.
func TestTheSharedMemoryOfAnAgentCounted(t *testing.T) {
	table := newTable(t)
	pid, out := spawn(t, table, Spec{ID: 1, Name: "shares", Argv: testproc.Argv("share", "50000000", "parent")})
	line(t, out)
	if got := NewMeter().Measure([]int{pid})[0]; got.Bytes < 50e6 || got.Bytes > 95e6 || got.Shared < 50e6 || got.Shared > 60e6 {
		t.Errorf("it has %+v", got)
	}
	table.SignalTree(1, int(unix.SIGKILL))
	exitOf(t, table, 1)
}

func TestParseMemory(t *testing.T) {
	for text, want := range map[procstat.Status][2]uint64{
		"Name:\tx\nVmRSS:\t   90 kB\nRssAnon:\t   40 kB\nRssShmem:\t 7 kB\nVmSwap:\t 2 kB\n": {42 << 10, 7 << 10},
		"Name:\tx\nVmRSS:\t 90 kB\n": {90 << 10},
		"":                           {}, "Name:\tx\nRssAnon:\n": {},
	} {
		if own, shared := ParseMemory(text); own != want[0] || shared != want[1] {
			t.Errorf("%q: %d and %d, not %d", text, own, shared, want)
		}
	}
}
