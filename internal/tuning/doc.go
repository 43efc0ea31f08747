// Package tuning adjusts PID 1's own threads, memory and file descriptors, and checks the limits of its container. It does that
// before the first service starts, or while PID 1 is idle. It owns no goroutine.
package tuning
