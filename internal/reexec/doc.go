// Package reexec replaces the program of this process by another program (re-execution). The process keeps its PID, children,
// pipes, sockets, timers and pending signals. A [Generation] is the period in which one program runs.
//
// The state consists of the Handover of each package, a plain struct. A package returns it from HandOver and accepts it in
// TakeOver. A field that must not be handed over has the tag `reexec:"-"`. An open file is a field of type *os.File. The whole
// state travels as JSON ([Codec]) in a sealed memory file (memfd_create(2)). The next program finds the file by an environment
// variable ([StateVariable]), which children don't get. The decoder ignores unknown keys, and fields without a key keep their
// value, so an older and a newer hinit understand each other. Times keep their value on the monotonic clock.
//
// An operator starts a re-execution ([Generation.Request]), or a panic does ([Generation.Panicked]). The [Host] finishes its
// operations, the supervisor's loop pauses, and the logs stop between two reads. hinit then writes the state, lets signals wait
// in the kernel, and calls execve(2). If few PIDs are free, hinit first stops all other processes. They continue when the new
// program has its threads ([Halted]). The new program calls [Take] before anything else, and [DecodeState] with the result.
//
// hinit refuses a new program that it can't trust or that is not for this machine ([Check]). The command line also tests whether
// the program knows the format. If execve fails, hinit undoes all of these steps. The container shuts down with [ExitFault] after
// a second fault within a minute, or after a fault during the boot. It also shuts down if the new program can't read the state.
//
// The package owns the goroutine of a requested re-execution, and two goroutines that write the report of a fault.
package reexec
