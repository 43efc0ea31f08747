// Package pause waits. It owns no goroutine.
package pause

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends, and reports whether ctx still goes on.
func For(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
