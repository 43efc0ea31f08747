// Package formats has the formats of s6: the output and input of its tools, and the content of its directories.
//
// Scripts and the agent parse these texts, so they are a contract. If versions of s6 differ, the package uses the form that all
// known callers understand. It knows nothing of hinit: PID 1 and the tools both use it. The tools are in package applet, the
// directories in package scandir.
//
// The package starts no goroutine and keeps no state between calls.
package formats
