// Package show formats answers of the control API for people. PID 1 itself formats the table of `hinit status`, because the
// command runs often, and would otherwise have to decode hundreds of services. [EscapeLine] escapes text that the agent may have
// chosen. The functions depend only on their arguments and the clock. The package owns no goroutine.
package show
