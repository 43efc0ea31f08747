// Package reexec replaces the program of this process by another. The process id, children, pipes, sockets, delays and the
// signals that come meanwhile are kept. Each program is a [Generation].
//
// The state is each room's Handover, a plain struct. A room returns it from HandOver and becomes a successor by TakeOver. A field
// that must stay behind has the tag `reexec:"-"`. An open file is a field of type *os.File. All of it travels as JSON ([Codec])
// in a sealed memory file (memfd_create(2)). The next image finds the file by an environment variable ([Var]) that no child gets
// to see. Unknown keys are ignored and missing keys are zero, so an older and a newer hinit understand each other. Times keep
// their place on the monotonic clock.
//
// By whom, and in which order: an operator asks ([Generation.Ask]), or a goroutine panics ([Generation.Panicked]). The [Host]
// comes to rest, its supervisor yields, the logs stop between two reads, all is written down, signals wait in the kernel, and
// execve(2) follows. Where process numbers are short, every other process is stopped before, and goes on when the new program has its
// threads ([Halted]). The new program calls [Take] before anything else, and [Next] with what it finds.
//
// A new program is refused if it can't be trusted or is not for this machine ([Check]). The command line also tries whether it
// knows the format. When execve fails, all of the above is undone and goes on. A second fault within a minute, or one during the
// boot, ends the container in good order with [ExitFault]. A new program that can't read the state ends the container in good
// order.
//
// The package owns the goroutine of a re-execution that was asked for, and two that write the report of a fault.
package reexec
