// Package volume is the boot program: the work of the boot on the data volume that not every container needs, and the work that follows in
// the background. It is linked by hinit-tools; [hinit/internal/boot.Job] says what PID 1 and the program say to each other.
//
// [Plant] fills an empty data directory with the files of the image. [Complete] makes the files that the agent expects. [RunHooks] has PID 1
// run the agent's and the user's hooks, without those that [Memory] can skip. After the start of the gateways, [Repair] gives the agent
// the rest of its files.
//
// It keeps the promises of package boot.
//
// The package owns goroutines: [Main] has one that hears answers until PID 1 closes the pipe. [Repair] runs its walk in one, which ends before Repair returns
// unless the disk hangs. [NewMemory] starts one for each boot step that may be skipped, and [RunHooks] one for each hook that runs.
package volume
