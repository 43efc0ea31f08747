// Package tuning is what PID 1 does about its own threads, memory and file descriptors, and what it can say about the limits of its
// container. All of it is settled before the first service starts, or when nothing happens any more: it owns no goroutine.
package tuning
