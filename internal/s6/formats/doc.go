// Package formats has the formats of s6: the input and output of its programs, and the files in its directories.
//
// Scripts and the agent parse these texts, so they must not change. Where versions of s6 differ, the package uses the form that all
// known callers understand. It depends on no other part of hinit, because both PID 1 and the tools use it. Package applet has the
// tools, and package scandir the directories.
//
// The package starts no goroutine and keeps no state between calls.
package formats
