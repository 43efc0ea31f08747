// Package ask has the entry points of hinit and hinit-tools (-E hinit_entry and -E hinit_tools in the Makefile). Its code
// runs before the Go runtime. It sends a command to PID 1 with plain system calls, for three reasons.
//
// It is fast: a status, or an order without a wait, takes less time than the start of the Go runtime. So the runtime starts
// only if PID 1 does not answer with a success.
//
// It needs no thread. The runtime needs a second thread, and ends the process with exit code 2 if the kernel refuses one. So
// when all PIDs of the container are taken, root could not use the commands of hinit just when they are needed. If the
// process can't make a few threads, this package carries out hinit stop, start, restart, status and healthcheck, and s6-svc.
// Any other command prints advice, and ends with an exit code that means failure.
//
// It needs no hinit-tools. In an image that has hinit without hinit-tools, a health check and an operator still need these
// commands. There, hinit itself carries them out.
//
// The rules of package entry for code without a runtime hold here, too: there are no goroutines yet.
package ask
