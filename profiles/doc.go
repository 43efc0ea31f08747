// Package profiles reads and writes agent profiles on the data volume: their names, homes and desired states. It also decides
// which gateways the boot starts.
//
// A profile is a directory with a marker file (SOUL.md). The root profile is called "default" and lives in the volume's root;
// every other one lives in profiles/<name> beneath it. The file gateway_state.json in a home has the operator's intent
// ("desired_state") and the last state of the gateway itself ("gateway_state"). Both the gateway and the commands rewrite the
// whole file without a lock. So one program can overwrite the intent that another has written; [Intents] restores it.
//
// list.go finds the profiles, state.go reads and writes the state file, and intents.go protects the intent. reconcile.go decides
// at boot which gateways start, watch.go follows later changes, and package manage makes and removes profiles for the command
// line.
//
// Promises:
//
//   - No function follows a symbolic link beneath the volume. Files are used with the identity of the agent's user, if the process may
//     switch to it (see [fsutil.Actor]).
//   - Readers see the old or the new content of every file that is written, also after a crash, never a mixture.
//   - A profile that can't be used never affects the others: it is skipped with a [Warning].
//   - The volume is opened for each operation and never held. So a volume that is replaced, unmounted or hung affects only the operation
//     under way. For the same reason everything that reads or writes may block for as long as the disk does: the supervisor's loop must
//     not call it. Exceptions say so.
//
// [Store.Watch] starts the only lasting goroutine, and the reader of its inotify queue; both end when its context ends. A
// function with a time limit runs in a short-lived goroutine.
package profiles
