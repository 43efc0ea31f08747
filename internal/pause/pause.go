// Package pause implements waits that end early with their context ([For], [Until], [Send]), and the wake-up of a waiting
// goroutine ([Wake]). The package owns no goroutine.
package pause

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends. It returns false if ctx has ended.
func For(ctx context.Context, d time.Duration) bool {
	return Until(ctx, time.After(d)) && ctx.Err() == nil
}

// Until receives a value from event, or waits until event is closed. It returns false if ctx ends first.
func Until[T any](ctx context.Context, event <-chan T) bool {
	select {
	case <-event:
		return true
	case <-ctx.Done():
		return false
	}
}

// Send sends value to a channel. It returns false if ctx ends first.
func Send[T any](ctx context.Context, to chan<- T, value T) bool {
	select {
	case to <- value:
		return true
	case <-ctx.Done():
		return false
	}
}

// Wake wakes the goroutine that receives from asleep, a channel of capacity 1. If the goroutine is busy, its next receive
// returns immediately. Several calls before that receive count as one. Wake does not block.
func Wake(asleep chan<- struct{}) {
	select {
	case asleep <- struct{}{}:
	default:
	}
}
