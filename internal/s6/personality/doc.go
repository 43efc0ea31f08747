// Package personality lets PID 1 act as s6. Its services have directories in the scan directory, and it executes the commands
// that the tools of s6 send to these services.
//
// A container that is made for s6 has an [S6]. The registry of services tells it which slots (service directories) must exist.
//
// # Promises
//
//   - Services of hinit start and stop as with hinit's own commands, so the operator's intent is recorded.
//   - hinit treats a directory that another program has made as s6 does, see package foreign.
//   - A command waits for the data volume for at most two seconds. It is carried out even if it takes longer.
//
// # Goroutines
//
// It starts only the scanner's goroutine, see package scandir. Calls of the control socket that wait for the scan directory run
// in the bounded pool of package internal/blocking.
package personality
