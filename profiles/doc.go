// Package profiles reads and writes agent profiles on disk: the name, the home on the data volume, whether its gateway is wanted,
// and the boot pass.
//
// A profile is a directory with a marker file (SOUL.md). The root profile is called "default" and lives in the volume's root;
// every other one lives in profiles/<name> beneath it. The file gateway_state.json in a home carries the operator's intent
// ("desired_state") and the gateway's last own state ("gateway_state"). Both the gateway and the commands rewrite it whole and
// without a lock. So an intent can get lost there, and [Intents] puts it back.
//
// list.go finds the profiles, state.go reads and writes the state file, and intents.go guards the intent. reconcile.go decides at
// boot what is up, watch.go follows what changes later, and manage.go makes and removes profiles for the command line.
//
// Promises:
//
//   - Nothing here follows a symbolic link beneath the volume, and everything is done as the agent's user where the process
//     may switch to it (see [fsutil.Actor]).
//   - Every file that is written is old or new to a reader and after a crash, never half of both.
//   - One bad profile never spoils the others: what can't be used becomes a [Warning] and is skipped.
//   - The volume is opened for each operation and never held, so a volume that is replaced, unmounted or hung hurts only the
//     operation under way. For the same reason everything that reads or writes may block for as long as the disk does:
//     the supervisor's loop must not call it. Exceptions say so.
//
// The only goroutine is the one [Watch] starts (and the reader of the inotify queue that belongs to it); it ends when its
// context does.
package profiles
