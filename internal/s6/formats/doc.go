// Package formats implements the formats of s6: the input and output of its tools, and the files in its directories.
//
// Scripts and the agent parse these texts, so they must not change. If versions of s6 differ, the package uses the form that all
// known callers understand. It does not depend on other parts of hinit, because PID 1 and the tools both use it. Package applet
// implements the tools, package scandir the directories.
//
// The package starts no goroutine and keeps no state between calls.
package formats
