// Package entry is where a command of hinit begins, before the Go runtime does: a binary that is linked with -E hinit_entry starts
// here (Makefile). The runtime can't live without a second thread, and ends the process with exit code 2 when the kernel
// refuses it. So where every process number of the container is taken, root's way in would be shut exactly when it is needed.
//
// A process that can have a few threads goes on into the runtime unchanged. A process that can't asks PID 1 by bare system calls:
// hinit stop, start, restart, status, healthcheck, and s6-svc. Any other command prints the next step and ends with an exit code
// that means failure. PID 1 itself goes straight on.
//
// This code has no heap, no growing stack and no garbage collector. It must not allocate, nor call code that does. Where other
// code would panic, it ends by a signal. There are no goroutines yet.
package entry
