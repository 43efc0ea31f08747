// Package entry is the first code of every hinit command. It runs before the Go runtime, in a binary that is linked with -E
// hinit_entry (Makefile). The runtime needs a second thread, and ends the process with exit code 2 if the kernel refuses one.
// So when all PIDs of the container are taken, root could not use the commands of hinit just when they are needed.
//
// If the process can create a few threads, the runtime starts. Otherwise this package itself sends the request to PID 1, with
// plain system calls. That works for hinit stop, start, restart, status and healthcheck, and for s6-svc. Any other command
// prints advice, and ends with an exit code that means failure. PID 1 itself goes on with the runtime at once.
//
// This code has no heap, no growing stack and no garbage collector. It must not allocate memory, nor call code that does.
// Where other code would panic, a signal kills this code. There are no goroutines yet.
package entry
