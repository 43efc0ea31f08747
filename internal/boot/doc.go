// Package boot is what happens between the start of PID 1 and the first service: the container is made ready and the
// container's command is understood.
//
// Deciding is kept apart from doing. [RouteCommand] says what a command line means without touching anything: a program
// to run, or a gateway to supervise. [PrepareRuntime] finds the one directory hinit needs for its control socket, and
// [SocketCandidates] tells a client where to look for it. [Admit] says whether the container may run as the user it was
// started as, and [Modes] what it cannot do as that user.
//
// The rest does what the image's boot scripts did, in this order: [Identity] settles who the agent is, in /etc alone;
// [Prepare] makes the data volume ready, as far as a gateway needs it to start; [RunHooks] runs what belongs to the agent
// and to the user; and, once the gateways are up, [Repair] gives the agent what is left of its files.
//
// Promises:
//
//   - A boot that cannot do everything says what it cannot do and goes on.
//   - Root follows no name that the agent's user can write. It changes owners through descriptors of what it has looked at,
//     and leaves creating and changing files to the agent's identity.
//   - How long the boot takes depends on the number of profiles and not on the number of files in them. A step on a disk
//     that does not answer is abandoned after its budget.
//   - Nothing that was done is done again: a second boot writes nothing and reports nothing new.
//
// Goroutines: [Prepare] and [Repair] run their work in one goroutine each, which ends before they return unless it hangs in
// a system call; then it is abandoned and ends when the disk answers, without doing anything more. Prepare also starts one
// for each mount point among the agent's directories, under the same rule. [NewMemory] starts one for each boot step
// that may be skipped.
package boot
