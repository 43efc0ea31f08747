// Package lease makes sure that only one init serves a data volume. It uses file locks of the kernel.
//
// [Lock] is the interface. [Volume] implements it with an exclusive lock (flock(2)) on the inode of the data directory. The
// kernel releases this lock when the process ends for any reason, but not while it is paused. A process that sees only the
// mount point can't replace this inode. So the lock needs no record, heartbeat or timer.
//
// On a network file system, such a lock of a directory works only within one machine. If the server of the file system keeps
// locks of files, a Volume also holds a write lock of the file .hinit/lock (F_OFD_SETLK of fcntl(2)). Every ten seconds it
// confirms that the server answers, and that the name still leads to the locked file. After 30 seconds without an answer it
// counts the lock as lost. Servers keep the lock of a silent client for longer.
//
// [LeasedVolume] implements Lock with a lease in another system. A program of the operator holds the lease, and tells hinit
// when it ends.
//
// Any process that can open the data directory can lock it. From another container, such a process can delay the next start
// of an init, but it can't take the lock from an init that holds it. [Holder] describes the process that holds the lock.
//
// Every call that may wait for the volume goes through [blocking.Volume], which limits how many wait at once. The package
// owns one goroutine while Acquire waits, and one while it watches a lock that can be lost. Several goroutines may call the
// methods, but only one may be in Acquire.
package lease
