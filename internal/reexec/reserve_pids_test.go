package reexec

import (
	"slices"
	"testing"
)

func TestTheNextProgramReadsWhatWasStopped(t *testing.T) {
	for _, before := range [][]int{nil, {7}, {7, 12345}} {
		h := Frozen{Threads: 33, Processors: 2, since: 1 << 50, stoppedBefore: before}
		got := parseFrozen(h.String())
		if got == nil || got.Threads != 33 || got.Processors != 2 || got.since != 1<<50 || !slices.Equal(got.stoppedBefore, before) {
			t.Errorf("%q is %+v", h.String(), got)
		}
	}
	for _, text := range []string{"", "33", "33 2", "33 2 x"} {
		if got := parseFrozen(text); got != nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
