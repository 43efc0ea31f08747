package tuning

import (
	"runtime/debug"
	"testing"
)

func TestTheCollectorIsAfterTheBootAsItWasBefore(t *testing.T) {
	for _, percent := range []int{100, 30, -1, 1000} {
		before := debug.SetGCPercent(percent)
		normal := RelaxGC()
		boot := debug.SetGCPercent(bootGCPercent)
		debug.SetGCPercent(boot)
		normal()
		if now := debug.SetGCPercent(before); now != percent {
			t.Errorf("GOGC was %d and is %d", percent, now)
		}
		if want := max(percent, bootGCPercent); percent > 0 && boot != want || percent < 0 && boot != percent {
			t.Errorf("with GOGC %d it was %d in the boot", percent, boot)
		}
	}
}
