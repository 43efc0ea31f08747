// Package pause has two functions for goroutines: one waits for a time, the other wakes a goroutine that waits. It owns no
// goroutine.
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

// Wake puts a token into a channel of capacity 1, from which a goroutine takes it when it waits next. It does not block: a token
// that is already there is enough.
func Wake(asleep chan<- struct{}) {
	select {
	case asleep <- struct{}{}:
	default:
	}
}
