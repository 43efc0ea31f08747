package serve

import (
	"testing"
	"time"
)

// A program that changes a board of 100,000 tasks all the time must not keep a processor busy. A pass takes half a second there,
// and the next pass must wait for as long.
func TestALargeBusyBoardLeavesHalfTheProcessor(t *testing.T) {
	t.Parallel()
	b := &board{lastPassDuration: 500 * time.Millisecond, workerEnded: make(chan struct{}, 1)}
	begin := time.Now()
	if !b.pauseBeforePass(t.Context()) || time.Since(begin) < b.lastPassDuration {
		t.Errorf("the next pass began after %s", time.Since(begin))
	}
	b.lastPassDuration = time.Hour
	b.workerEnded <- struct{}{}
	if !b.pauseBeforePass(t.Context()) { // the end of a worker ends the pause
		t.Error("no pass")
	}
}
