package reexec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTheNextProgramReadsWhatWasStopped(t *testing.T) {
	for _, before := range [][]int{nil, {7}, {7, 12345}} {
		h := Halted{Threads: 33, Processors: 2, since: 1 << 50, before: before}
		got := parseHalted(h.String())
		if got == nil || got.Threads != 33 || got.Processors != 2 || got.since != 1<<50 || !slices.Equal(got.before, before) {
			t.Errorf("%q is %+v", h.String(), got)
		}
	}
	for _, text := range []string{"", "33", "33 2", "33 2 x"} {
		if got := parseHalted(text); got != nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// A binary that does not let the others go on would leave the container standing still for good.
func TestABinaryThatLetsNothingGoOnIsKnown(t *testing.T) {
	if !knowsHalt(Self) {
		t.Error("this program knows the variable")
	}
	if knowsHalt("/nowhere") {
		t.Error("no program")
	}
	path := filepath.Join(t.TempDir(), "program")
	for size := range 40 { // across the ends of what is read at once
		pad := strings.Repeat("x", 64<<10-20+size)
		for text, want := range map[string]bool{pad + HaltedVariable + pad: true, pad + HaltedVariable: true, pad + HaltedVariable[1:] + pad: false} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := knowsHalt(path); got != want {
				t.Errorf("%d bytes: %v", len(text), got)
			}
		}
	}
}
