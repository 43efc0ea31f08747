// Package limits is the program that sets limits and other properties of its own process, and then executes a command. PID 1
// starts it in place of the command, as [proc.LimitsName]. The words of its command line say what to set. Package entry has
// carried out some of them before Go begins. It reads files of variables as the command's user. PID 1 does not link it. The
// package owns no goroutine.
package limits
