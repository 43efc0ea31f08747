// Package reexec replaces the program of this process by another while everything it holds goes on: its process id, its
// children, pipes, sockets and delays, and the signals that come meanwhile. Each program is a [Generation].
//
// What is handed over: each room's Handover, a plain struct. A room returns it from HandOver and becomes a successor by
// TakeOver. What is not to be handed over has the tag `reexec:"-"`, an open file is a field of type *os.File. All of it travels
// as JSON ([Codec]) in a sealed memory file (memfd_create(2)), which the next generation finds by an environment variable
// ([Var]) that no child gets to see. Keys that the reader does not know are ignored, keys that are missing are zero, so an older
// and a newer hinit understand each other. Times keep their place on the monotonic clock.
//
// By whom, and in which order: an operator asks ([Generation.Ask]), or a goroutine panics ([Generation.Panicked]). The [House]
// comes to rest, its supervisor yields, the logs stop between two reads, all is written down, signals wait in the kernel, and
// execve(2) follows. Where process numbers are short, every other process is stopped before, and goes on when the new program has its
// threads ([Halted]). The new program calls [Take] before anything else, and [Next] with what it finds.
//
// When the new program is broken: one that can't be trusted or is not for this machine is refused ([Check]), and so is one that
// does not know the format (the command line tries that). When execve fails, all of the above is undone and goes on. A second
// fault within a minute, or one during the boot, ends the container in good order with [ExitFault]. A new program that can't
// make sense of what it gets ends what it has as its container does then.
//
// The package owns the goroutine of a re-execution that was asked for, and two that write the report of a fault.
package reexec
