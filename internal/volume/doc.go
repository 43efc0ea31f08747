// Package volume is the boot program. It works on the data volume on behalf of PID 1, so that PID 1 never waits for that disk.
//
// PID 1 starts the program with a job, see [hinit/internal/boot.Job]. At boot, [FillEmptyHome] fills an empty data directory with
// files from the image, and [CompleteBoot] creates the files that the agent expects. [RunHooks] makes PID 1 run the hooks of the
// agent and of the user. [StepRecord] knows which hooks can be skipped. Later, [Repair] gives files of other users to the agent's
// user. Other jobs measure the profiles while the container runs. The program is a part of the binary hinit-tools.
//
// The package keeps the promises of package boot.
//
// The package owns goroutines. [Main] starts a goroutine that reads the answers of PID 1 until PID 1 closes the pipe. [Repair]
// walks the files in another goroutine, which ends before Repair returns unless the disk hangs. [NewStepRecord] starts a goroutine
// for each boot step that may be skipped, and [RunHooks] for each running hook.
package volume
