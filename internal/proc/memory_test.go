package proc

import (
	"testing"

	"golang.org/x/sys/unix"
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

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]uint64{
		"Name:\tx\nVmRSS:\t   90 kB\nRssAnon:\t   40 kB\nVmSwap:\t 2 kB\n": 42 << 10,
		"Name:\tx\nVmRSS:\t 90 kB\n":                                       90 << 10,
		"":                                                                 0, "Name:\tx\nRssAnon:\n": 0,
	} {
		if got := parseMemory([]byte(text)); got != want {
			t.Errorf("%q: %d, not %d", text, got, want)
		}
	}
}
