// Package pause has functions that wait until a context ends at the latest ([For], [Until], [Send]), or until a time is over
// ([AtMost]). One function wakes a waiting goroutine ([Wake]). It owns no goroutine.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns false if ctx ends first.
func For(ctx context.Context, d time.Duration) bool {
	return Until(ctx, time.After(d)) && ctx.Err() == nil
}

// Until waits until event delivers a value or is closed. It returns false if ctx ends first.
func Until[T any](ctx context.Context, event <-chan T) bool {
	select {
	case <-event:
		return true
	case <-ctx.Done():
		return false
	}
}

// AtMost waits until event delivers a value or is closed, but at most for d.
func AtMost[T any](d time.Duration, event <-chan T) {
	select {
	case <-event:
	case <-time.After(d):
	}
}

// Send sends a value to a channel. It returns false if ctx ends first.
func Send[T any](ctx context.Context, to chan<- T, value T) bool {
	select {
	case to <- value:
		return true
	case <-ctx.Done():
		return false
	}
}

// Wake wakes the goroutine that receives from asleep, a channel of capacity 1. If the goroutine is busy, its next receive
// returns at once. Several calls before that are one wake-up. Wake never blocks.
func Wake(asleep chan<- struct{}) {
	select {
	case asleep <- struct{}{}:
	default:
	}
}
