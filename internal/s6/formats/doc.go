// Package formats holds the formats of s6: what its tools print and take, and what its directories hold.
//
// Scripts and the agent parse these texts, so they are a contract. Where versions of s6 differ, the package uses the form that all
// known callers understand. It knows nothing of hinit: PID 1 and the tools both use it. The tools are in package applet, the directories
// in package scandir.
//
// The package starts no goroutine and keeps no state between calls.
package formats
