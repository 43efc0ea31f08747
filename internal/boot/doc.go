// Package boot is what happens between the start of PID 1 and the first service: the container is made ready and the
// container's command is understood.
//
// Deciding is kept apart from doing. [RouteCommand] says what a command line means without touching anything: a program
// to run, or a gateway to supervise. [PrepareRuntime] finds the one directory hinit needs for its control socket, and
// [SocketCandidates] tells a client where to look for it.
//
// It promises that a boot that cannot do everything says what it cannot do and goes on, and that root follows no name that
// the agent's user can write. It owns no goroutines.
package boot
