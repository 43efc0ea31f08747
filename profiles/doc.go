// Package profiles reads and writes agent profiles on the data volume, and decides which gateways start at boot. A profile has a
// name, a home directory and a desired state. Its gateway is the service that hinit runs for it.
//
// A profile is a directory with a marker file (SOUL.md). The root profile is called "default"; its home is the root of the
// volume. The home of any other profile is profiles/<name> below the root. The file gateway_state.json in a home contains the
// operator's intent ("desired_state") and the last state of the gateway itself ("gateway_state"). Both the gateway and the
// agent's commands rewrite the whole file without a lock. So one program can overwrite the intent that another has just written;
// [Intents] restores it.
//
// list.go finds the profiles, state.go reads and writes the state file, and intents.go protects the intent. reconcile.go decides
// at boot which gateways start, and watch.go follows later changes. Package manage creates and removes profiles for the command
// line.
//
// Promises:
//
//   - No function follows a symbolic link below the volume. All file accesses run as the agent's user, or as the owner of a home
//     with its own user, if the process may switch to that user (see [fsutil.Actor]).
//   - A reader of a file that this package writes sees the old or the new content, never a mixture, even after a crash.
//   - A profile that can't be used never affects the others: it is left out with a [Warning].
//   - Each operation opens the volume again and closes it at its end. So if a volume is replaced, unmounted or hangs, only the
//     current operation is affected. An operation that reads or writes may block as long as the disk does, so the supervisor's
//     loop must not call it. The comments name the exceptions.
//
// [Store.Watch] starts the only long-lived goroutines: the watcher and the reader of its inotify queue. Both end when its context
// ends. A function with a time limit runs in a short-lived goroutine.
package profiles
