// Package entry is where a command of hinit begins, before the Go runtime does: a binary that is linked with -E hinit_entry starts
// here (Makefile). The runtime can't live without a second thread, and ends the process with exit code 2 when the kernel
// refuses it. So where every process number of the container is taken, root's way in would be shut exactly when it is needed.
//
// It promises that a process that can have a few threads goes on into the runtime as if nothing had been, and that one that can't
// asks PID 1 by bare system calls (hinit stop, start, restart, status, healthcheck, and s6-svc) or says what to do instead, with
// an exit code that means failure. PID 1 itself goes straight on.
//
// What runs here has no heap, no growing stack and no garbage collector: it allocates nothing, calls nothing that does, and ends by
// a signal where other code would panic. It starts no goroutine, for there are none.
package entry
