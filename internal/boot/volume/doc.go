// Package volume is the boot program. It does the boot's work on the data volume that not every container needs, and later work
// in the background. hinit-tools links it. [hinit/internal/boot.Job] describes the messages between PID 1 and the program.
//
// [Plant] fills an empty data directory with the files of the image. [Complete] creates the files that the agent expects.
// [RunHooks] makes PID 1 run the agent's and the user's hooks, except those that [Memory] can skip. After the start of the
// gateways, [Repair] gives the agent the rest of its files.
//
// It keeps the promises of package boot.
//
// The package owns goroutines: [Main] has one that reads answers until PID 1 closes the pipe. [Repair] runs its walk in one,
// which ends before Repair returns unless the disk hangs. [NewMemory] starts one for each boot step that may be skipped, and
// [RunHooks] one for each running hook.
package volume
