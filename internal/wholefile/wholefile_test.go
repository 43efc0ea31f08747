package wholefile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A program without /proc, such as one in a chroot, must still replace files. The task board could not write its settings.
func TestAFileIsReplacedWithoutProc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can hide /proc")
	}
	path := filepath.Join(t.TempDir(), "file")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread has mounts of its own, and ends with this goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		err = errors.Join(err, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("none", "/proc", "tmpfs", 0, ""))
		for _, text := range []string{"old", "new"} {
			if err == nil {
				err = Replace(path, 0o600, true, strings.NewReader(text).WriteTo)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); string(text) != "new" || err != nil {
		t.Errorf("the file has %q, error %v", text, err)
	}
	if names, err := os.ReadDir(filepath.Dir(path)); len(names) != 1 || err != nil {
		t.Errorf("the directory has %v, error %v", names, err)
	}
}
