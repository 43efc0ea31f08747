package proc

import (
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// readAs reads a file with the file-system identity of another user.
func readAs(name string, asUID, asGID uint32) ([]byte, error) {
	var f *os.File
	var err error
	runAs(asUID, asGID, func() { f, err = os.Open(name) })
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}

// runAs calls a function with the file-system identity of another user (setfsuid(2)). If it can't restore the identity
// afterwards, it leaves the goroutine locked to the thread, so that the Go runtime ends the thread together with the goroutine.
func runAs(uid, gid uint32, call func()) {
	runtime.LockOSThread()
	ownUID, _ := unix.SetfsuidRetUid(-1)
	ownGID, _ := unix.SetfsgidRetGid(-1)
	_, _ = unix.SetfsgidRetGid(int(gid))
	_, _ = unix.SetfsuidRetUid(int(uid))
	call()
	_, _ = unix.SetfsuidRetUid(ownUID)
	_, _ = unix.SetfsgidRetGid(ownGID)
	if back, _ := unix.SetfsuidRetUid(-1); back == ownUID {
		runtime.UnlockOSThread()
	}
}
