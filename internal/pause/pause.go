// Package pause implements a sleep that ends early with its context ([For]), and the wake-up of a waiting goroutine
// ([Wake]). The package owns no goroutine.
package pause

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends. It returns false if ctx has ended.
func For(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Wake wakes the goroutine that receives from asleep, a channel of capacity 1. If the goroutine is busy, its next receive
// returns immediately. Several calls before that receive count as one. Wake does not block.
func Wake(asleep chan<- struct{}) {
	select {
	case asleep <- struct{}{}:
	default:
	}
}
