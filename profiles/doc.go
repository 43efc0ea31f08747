// Package profiles reads and writes agent profiles on the data volume, and decides which gateways the boot starts. A profile has a
// name, a home and a desired state.
//
// A profile is a directory with a marker file (SOUL.md). The root profile is called "default" and lives in the volume's root.
// Every other profile lives in profiles/<name> beneath the root. The file gateway_state.json in a home has the operator's intent
// ("desired_state") and the last state of the gateway itself ("gateway_state"). Both the gateway and the commands rewrite the
// whole file without a lock. So one program can overwrite the intent that another has written; [Intents] restores this intent.
//
// list.go finds the profiles, state.go reads and writes the state file, and intents.go protects the intent. reconcile.go decides
// at boot which gateways start, watch.go follows later changes, and package manage makes and removes profiles for the command
// line.
//
// Promises:
//
//   - No function follows a symbolic link beneath the volume. All uses of files have the identity of the agent's user, if the
//     process may switch to it (see [fsutil.Actor]).
//   - A reader of a file that this package writes sees the old or the new content, never a mixture, also after a crash.
//   - A profile that can't be used never affects the others: it is left out with a [Warning].
//   - Each operation opens the volume anew, and nothing keeps it open. So a volume that is replaced, unmounted or hung affects
//     only the present operation. For the same reason everything that reads or writes may block for as long as the disk does, and
//     the supervisor's loop must not call it. The comments name the exceptions.
//
// [Store.Watch] starts the only lasting goroutine, and the reader of its inotify queue; both end with its context. A function
// with a time limit runs in a short-lived goroutine.
package profiles
