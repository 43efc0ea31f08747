// Package lease ensures that only one init serves a data volume. It uses file locks of the kernel.
//
// [Lock] is the contract. [Volume] implements it with an exclusive lock (flock(2)) on the data directory's inode. The kernel
// releases that lock when the process exits for any reason, but not while it is paused. A process that has access only to the
// mount point can't replace the directory's inode. So this lock needs no lock record, heartbeat or timer.
//
// On a network file system, the lock of a directory is effective on one machine only. If the file system's server keeps locks of
// files, a Volume also holds a write lock on the file .hinit/lock (F_OFD_SETLK of fcntl(2)). Every ten seconds it confirms that
// the server still answers and that the name still leads to the locked file. After 30 seconds without an answer, the Volume
// treats the lock as lost; servers keep the lock of a silent client for longer.
//
// [LeasedVolume] implements Lock with a lease in another system. A program of the operator holds the lease and reports its end to
// hinit.
//
// Any process that can open the data directory can lock it. Such a process in another container can delay the next start of an
// init, but it can't take the lock from an init that holds it. [Holder] describes the process that holds the lock.
//
// Every call that may wait for the volume runs through [blocking.Volume], which limits how many calls wait at once. The
// package owns one goroutine while Acquire waits, and one while it watches a lock that can be lost. All methods may be
// called from several goroutines, but Acquire only by one at a time.
package lease
