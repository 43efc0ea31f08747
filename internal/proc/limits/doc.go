// Package limits is the program that a new process executes before its command. It sets limits and other properties of the
// process in which it runs, and then executes the command. PID 1 starts it as [proc.LimitsName]; the words of the command line
// say what to set. Package entry carries out some of the words before the Go runtime starts. The program reads environment files
// as the command's user. PID 1 does not link this package. The package owns no goroutine.
package limits
