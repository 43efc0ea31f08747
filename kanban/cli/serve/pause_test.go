package serve

import (
	"testing"
	"time"
)

// TestALargeBusyBoardLeavesHalfTheProcessor checks the pause after a pass over a large board that
// changes all the time. The pause must be as long as the pass.
func TestALargeBusyBoardLeavesHalfTheProcessor(t *testing.T) {
	t.Parallel()
	b := &servedBoard{lastPassDuration: 500 * time.Millisecond, workerEnded: make(chan struct{}, 1)}
	begin := time.Now()
	if !b.pauseBeforePass(t.Context()) || time.Since(begin) < b.lastPassDuration {
		t.Errorf("the next pass began after %s", time.Since(begin))
	}
	b.lastPassDuration = time.Hour
	b.workerEnded <- struct{}{}
	if !b.pauseBeforePass(t.Context()) { // The end of a worker ends the pause.
		t.Error("no pass")
	}
}
