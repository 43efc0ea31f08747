// Package reexec replaces the program of this process by another. The process id, children, pipes, sockets, timers and pending
// signals are kept. Each program is a [Generation].
//
// The state is each room's Handover, a plain struct. A room returns it from HandOver and takes it in by TakeOver. A field that
// must not be handed over has the tag `reexec:"-"`. An open file is a field of type *os.File. All of it travels as JSON ([Codec])
// in a sealed memory file (memfd_create(2)). The next program finds the file by an environment variable ([Var]), which children
// don't get. Unknown keys are ignored and missing keys are zero, so an older and a newer hinit understand each other. Times keep
// their value on the monotonic clock.
//
// An operator starts a re-execution ([Generation.Ask]), or a panic does ([Generation.Panicked]). The [Host] finishes its
// operations, its supervisor yields, the logs stop between two reads, the state is written, signals wait in the kernel, and
// execve(2) follows. If process numbers are short, all other processes are stopped before. They continue when the new program has
// its threads ([Halted]). The new program calls [Take] before anything else, and [Next] with the result.
//
// A new program is refused if it can't be trusted or is not for this machine ([Check]). The command line also tests whether it
// knows the format. If execve fails, all of the above is undone. The container is shut down with [ExitFault] after a second fault
// within a minute, or one during the boot. It is also shut down if a new program can't read the state.
//
// The package owns the goroutine of a requested re-execution, and two that write the report of a fault.
package reexec
