// Package tuning adjusts PID 1's own threads, memory and file descriptors, and checks the limits of its container. It works
// before the first service starts, or while PID 1 is idle. Its goroutines only make the threads, and then end.
package tuning
