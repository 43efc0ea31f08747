// Package entry is the first code of a hinit command, which runs before the Go runtime: a binary that is linked with -E
// hinit_entry starts here (Makefile). The runtime needs a second thread, and ends the process with exit code 2 if the kernel
// refuses it. So if all PIDs of the container are taken, root could not use hinit's commands just when they are needed.
//
// If the process can create a few threads, it continues with the runtime. Otherwise this package sends the request to PID 1
// itself, with plain system calls. That works for hinit stop, start, restart, status and healthcheck, and for s6-svc. Any other
// command prints advice and ends with an exit code that means failure. PID 1 itself continues with the runtime immediately.
//
// This code has no heap, no growing stack and no garbage collector. It must not allocate memory, nor call code that allocates.
// Where other code would panic, this code dies from a signal. There are no goroutines yet.
package entry
