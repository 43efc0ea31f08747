// Package boot does the work between the start of PID 1 and the first service: it makes the container ready and interprets the
// container's command.
//
// Some functions only decide, without side effects. [PlanRun] says what the container's command means: a program to run, or a
// gateway to supervise. [CheckStartUser] says whether the container may run as its user, and [Modes] what it can't do as that
// user.
//
// The rest does the work of the image's boot scripts. [PrepareRuntime] chooses the place of the control socket; clients find it
// through [hinit/client.Sockets]. [ResolveAgent] updates the agent's user in /etc. [Prepare] does the work on the data volume
// that every container needs before its gateways start. The boot program, a separate process, does the work that only some
// containers need, and later work in the background: see [Job] and package volume.
//
// Promises:
//
//   - A boot that can't do everything reports what it can't do and goes on.
//   - Root does not follow names that the agent's user can change. It changes owners through descriptors of files that it has
//     checked. Files are created and changed only with the agent's identity.
//   - The duration of the boot depends on the number of profiles, not on the number of their files. A step on a disk that does
//     not answer is abandoned after its budget.
//   - A second boot writes nothing and reports nothing new.
//
// Goroutines: [Report.Run] runs each phase in one goroutine, which ends before Run returns. If it hangs in a system call, it is
// abandoned instead: it ends when the disk answers, and does no further work. Prepare also starts one goroutine for each mount
// point among the agent's directories, under the same rule.
package boot
