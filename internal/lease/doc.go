// Package lease decides which of several inits that share a data volume supervises its profiles.
//
// The lease is a file that the holder rewrites. Clocks of two machines are never compared. An init that waits looks, by its own clock,
// whether the file changes; after eight seconds without a change it may take the lease. It does so by creating the file of the next
// epoch. The file system lets only one init succeed in that.
//
// On NFS, virtiofs, FUSE and 9p the holder rewrites the file every two seconds. It gives the lease up when it could not do so for six
// seconds, and at once when it finds a higher epoch, so that what it runs has ended before another init may begin.
//
// On a local file system the holder also has the kernel's lock (flock(2)) of the volume's directory. An init that gets the lock knows
// that the holder is dead, and need not wait. The holder looks for a higher epoch when the kernel tells of a change (inotify(7)),
// at most once a second, and every 30 seconds besides; where there are no notifications, every second. It rewrites the file only while
// another init waits, and does not give up because of the time. An init that takes the lease from a silent holder waits three seconds before it
// serves, in which that holder can notice it. Silence counts only while the volume takes writes.
//
// A holder that was paused may start nothing until it has looked, and an init that got no answer from the volume may start nothing at
// all ([Lease.Check]).
//
// The file is below HERMES_HOME, where the agent can write. What the agent does to it can't harm hinit; it can make two inits
// run for seconds, or one wait, on the agent's own volume.
//
// Everything that may wait for the volume takes a turn of [blocking.Volume] in a goroutine of its own, one at a time. The package also
// owns one goroutine while a lease is held, and one more for the notifications. All methods may be called from several goroutines, but only one may be in [Lease.Acquire].
package lease
