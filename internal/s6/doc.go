// Package s6 holds the formats of s6: what its tools print and take, and what its directories hold.
//
// Scripts and the agent itself talk to a supervisor through these texts, so they are a contract: a status line, the fields
// of a status, the letters of a command, time stamps and the names of signals. Everything here is a function of its
// arguments. Nothing of it knows hinit, which makes it usable in PID 1 as well as in the tools; package applet beneath it
// has the tools, package scandir the directories.
//
// Where versions of s6 differ, the form is taken that all known callers understand. The differences stand beside the
// functions.
//
// The package starts no goroutine and keeps nothing between calls.
package s6
