// Package limits is what a process sets about itself before it becomes a command: PID 1 starts it instead of the command, as
// [proc.LimitsName]. The words of its command line say what to set. Package entry has carried out some of them before Go begins. It reads files
// of variables as the command's user. PID 1 does not link it. The package owns no goroutine.
package limits
