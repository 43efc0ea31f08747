// Package volume is the program that works on the data volume for PID 1, so that PID 1 never waits for that disk.
//
// PID 1 calls it the boot program and starts it with a job, see [hinit/internal/boot.Job]. At the boot, [Plant] fills an empty data
// directory with the files of the image. [Complete] creates the files that the agent expects. [RunHooks] makes PID 1 run the hooks
// of the agent and of the user, except the hooks that [StepRecord] can skip. Later, [Repair] gives the remaining files to the agent.
// Other jobs measure the profiles while the container runs. hinit-tools links the package.
//
// It keeps the promises of package boot.
//
// The package owns goroutines. [Main] has one that reads answers until PID 1 closes the pipe. [Repair] runs its walk in one,
// which ends before Repair returns unless the disk hangs. [NewStepRecord] starts one for each boot step that may be skipped, and
// [RunHooks] one for each running hook.
package volume
