// Package volume is the boot program: it works on the data volume on behalf of PID 1, so that PID 1 never waits for that disk.
//
// PID 1 starts the program with a job, see [hinit/internal/boot.Job]. At boot, [FillEmptyHome] fills an empty data directory with
// files from the image, and [Complete] creates the files that the agent expects. [RunHooks] makes PID 1 run the hooks of the
// agent and of the user, except the hooks that [StepRecord] can skip. Later, [Repair] gives files of other users to the agent's
// user. Other jobs measure the profiles while the container runs. The binary hinit-tools contains the package.
//
// It keeps the same promises as package boot.
//
// The package owns goroutines. [Main] starts one that reads the answers of PID 1 until PID 1 closes the pipe. [Repair] walks the
// files in another one, which ends before Repair returns unless the disk hangs. [NewStepRecord] starts one for each boot step
// that may be skipped, and [RunHooks] one for each running hook.
package volume
