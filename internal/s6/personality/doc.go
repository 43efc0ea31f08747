// Package personality lets PID 1 act as s6: its services have directories below the scan directory, and it executes s6's commands
// to them.
//
// A container that is made for s6 has an [S6]. It follows the registry, which says which slots exist.
//
// # Promises
//
//   - Services of hinit start and stop as with hinit's own commands, so the operator's intent is recorded.
//   - hinit treats a directory of another program like s6, see package foreign.
//   - A command waits for the data volume for two seconds at most. It stays in force after that.
//
// # Goroutines
//
// It starts only the scanner's goroutine, see package scandir. Calls of the control socket that wait for the scan directory run
// in the bounded pool.
package personality
