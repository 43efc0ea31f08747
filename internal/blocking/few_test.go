package blocking

import (
	"os"
	"os/exec"
	"testing"
)

func VolumeTurns() int { return poolSizes[Volume] }

// TestFew checks calls with the smallest number of turns. It runs in a separate process, because the number can be changed only
// before the first use.
func TestFew(t *testing.T) {
	const alone = "BLOCKING_TEST_ALONE"
	if os.Getenv(alone) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFew$", "-test.count=1")
		cmd.Env = append(os.Environ(), alone+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	many := TotalTurns()
	MinimizeTurns()
	if TotalTurns() >= many {
		t.Errorf("%d turns are few, of %d", TotalTurns(), many)
	}
	for s := range poolCount {
		done := 0
		if err := Do(s, func() error { done++; return nil }); err != nil || done != 1 {
			t.Errorf("pool %d: %v, done %d times", s, err, done)
		}
	}
	if err := Do(Volume, func() error { return Do(Volume, func() error { return nil }) }); err != nil {
		t.Error(err)
	}
}
