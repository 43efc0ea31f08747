// Package reexec replaces the program of this process by another one, or by the same one after a fault (re-execution). The
// process keeps its PID, children, pipes, sockets, timers and pending signals. A [Generation] is the time in which one program
// runs.
//
// The state consists of the Handover of each package: a plain struct, which the package returns from HandOver and accepts in
// TakeOver. It travels as JSON ([Codec]) in a sealed memory file (memfd_create(2)). The next program finds the file by an
// environment variable ([StateVariable]), which children don't get. The decoder ignores unknown keys, and fields without a key
// keep their value, so an older and a newer hinit understand each other.
//
// An operator asks for a re-execution ([Generation.Request]), or a panic causes it ([Generation.Panicked]). The [Host] finishes
// its operations, the supervisor's loop pauses, and the logs stop between two reads. hinit then writes the state, makes signals
// wait in the kernel, and calls execve(2). If few PIDs are free, hinit first freezes all other processes, and they continue
// when the new program has its threads ([Frozen]). The new program first calls [TakeState], and then [DecodeState].
//
// hinit refuses a program that it can't trust, that is not for this machine, or that does not know the format. For this it
// first executes the program as a child, which prints the format. If execve fails, hinit undoes all steps. The container shuts down with [ExitFault]
// after a second fault within a minute, after a fault during the boot, or if the new program can't read the state.
//
// The package owns the goroutine of a requested re-execution, and the goroutines that write the report of a fault.
package reexec
