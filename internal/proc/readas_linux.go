package proc

import (
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// readAs reads a file with the file-system identity of another user, on a thread that is given back only when it is itself again.
func readAs(name string, asUID, asGID uint32) ([]byte, error) {
	runtime.LockOSThread()
	uid, _ := unix.SetfsuidRetUid(-1)
	gid, _ := unix.SetfsgidRetGid(-1)
	_, _ = unix.SetfsgidRetGid(int(asGID))
	_, _ = unix.SetfsuidRetUid(int(asUID))
	f, err := os.Open(name)
	_, _ = unix.SetfsuidRetUid(uid)
	_, _ = unix.SetfsgidRetGid(gid)
	if back, _ := unix.SetfsuidRetUid(-1); back == uid {
		runtime.UnlockOSThread() // otherwise the runtime ends the thread with its goroutine
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
