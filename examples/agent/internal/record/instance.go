package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func pidPath(home string) string  { return filepath.Join(home, "gateway.pid") }
func lockPath(home string) string { return filepath.Join(home, "gateway.lock") }

// RunningGateway returns the gateway in the pid file of a home, and whether it is alive.
func RunningGateway(home string) (Identity, bool) {
	id, err := readIdentity(pidPath(home))
	if err != nil {
		return Identity{}, false
	}
	return id, id.Alive()
}

// A LockedError means that another process holds the lock of a home. Owner is that process, or empty if the lock file names
// none.
type LockedError struct{ Owner Identity }

// Error names the owner.
func (e *LockedError) Error() string {
	return fmt.Sprintf("gateway.lock is held by PID %d", e.Owner.PID)
}

// LockGateway takes the lock of a home without waiting, and writes id into the lock file. The lock is held as long as the
// returned file is open; no child inherits it. The lock file is never removed. If another process holds the lock, the error is a
// *LockedError.
func LockGateway(home string, id Identity) (*os.File, error) {
	file, err := os.OpenFile(lockPath(home), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the gateway lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			owner, _ := readIdentity(lockPath(home))
			return nil, &LockedError{owner}
		}
		return nil, fmt.Errorf("cannot lock %q: %w", lockPath(home), err)
	}
	data, err := json.Marshal(id)
	if err == nil {
		err = file.Truncate(0)
	}
	if err == nil {
		_, err = file.WriteAt(data, 0)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("cannot write the gateway lock: %w", err)
	}
	return file, nil
}

// WritePID creates the pid file exclusively. The caller must hold the lock. An existing file is therefore from a gateway that
// died, and WritePID replaces it.
func WritePID(home string, id Identity) error {
	data, err := json.Marshal(id)
	if err != nil {
		return err
	}
	path := pidPath(home)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("cannot replace the stale pid file: %w", err)
		}
		file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot create the pid file: %w", err)
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("cannot write the pid file: %w", err)
	}
	return nil
}

// RemovePID removes the pid file of a home if the file has this pid.
func RemovePID(home string, pid int) error {
	id, err := readIdentity(pidPath(home))
	if err != nil || id.PID != pid {
		return nil
	}
	return removeIfExists(pidPath(home))
}
