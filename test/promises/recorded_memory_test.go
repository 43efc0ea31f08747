package promises_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMemoryIsRecordedAfterAReExecution checks that a re-executed hinit still records the gateways'
// memory for the next boot.
func TestMemoryIsRecordedAfterAReExecution(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{Memory: memoryGroup(t, 64<<20)}})
	b.profile("calm", sleeper)
	b.boot()
	b.check(b.sendCommand("start", "calm"))
	b.startAndAwait("calm")
	b.reexec()
	within(t, patience+time.Minute, func() error {
		text, err := os.ReadFile(b.volume() + "/.hinit-memory.json")
		if err == nil && !strings.Contains(string(text), `"gateway-calm"`) {
			err = fmt.Errorf("it has %s", text)
		}
		return err
	})
}
