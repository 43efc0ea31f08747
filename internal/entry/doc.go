// Package entry is the first code of hinit, which package ask calls before the Go runtime starts. For a command it executes
// hinit-tools. In a new process of a service, it changes the user and other settings, and then executes the service. After a
// re-execution, it makes PID 1 wait until it can make its threads.
//
// This code has no heap, no growing stack and no garbage collector. It must not allocate memory, nor call code that does. Where
// other code would panic, a signal kills this process. It owns no goroutine.
package entry
