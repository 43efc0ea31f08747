// Package boot does the work between the start of PID 1 and the first service. It makes the container ready, and interprets
// the container's command.
//
// Some functions only decide. [PlanRun] says what the command means: a program to run, or a gateway to supervise.
// [CheckStartUser] says whether the container may run as its user, and [StartRestrictions] what it can't do as that user.
//
// The others do the work of the image's boot scripts. [PrepareRuntime] chooses the place of the control socket, which clients
// find through [hinit/client.Sockets]. [ResolveAgent] updates the agent's user in /etc. [Prepare] does the work on the data
// volume that every container needs before its gateways start. The boot program, a separate process, does what only some
// containers need, and later work in the background: see [Job] and package volume.
//
// Promises:
//
//   - A boot that can't do everything says what it can't do, and continues.
//   - Root never follows a name that the agent's user can change. It changes owners through descriptors of files that it has
//     checked, and creates and changes files only as the agent's user.
//   - How long the boot takes depends on the number of profiles, not on the number of their files. A step on a disk that does
//     not answer is abandoned after its budget.
//   - A second boot writes nothing and reports nothing new.
//
// Goroutines: [Report.Run] runs each phase in a goroutine, which ends before Run returns. A phase that hangs in a system call
// is abandoned: its goroutine ends when the disk answers, and does nothing more. Prepare also starts a goroutine for each
// mount point among the agent's directories, with the same rule.
package boot
