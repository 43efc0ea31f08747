// Package personality makes PID 1 act as s6. hinit's services get directories in the scan directory, and PID 1 carries out the
// commands that the programs of s6 send to these services.
//
// In a container that was made for s6, an [S6] does this work. The registry of services tells the S6 which slots (service
// directories) must exist.
//
// # Promises
//
//   - Commands of s6 start and stop hinit's services just as hinit's own commands do. They also record the operator's intent.
//   - A directory of another program is treated as in s6, see package foreign.
//   - A command waits for the data volume for at most two seconds. It is carried out even if it takes longer.
//
// # Goroutines
//
// The package starts only the scanner's goroutine, see package scandir. Requests on the control socket that wait for the scan
// directory run in the bounded pool of package internal/blocking.
package personality
