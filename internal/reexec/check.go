package reexec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Check says why a file must not become PID 1, if so: that must be a binary of this machine that nobody but root, or the user
// hinit runs as, can write or put another in the place of. It blocks on the disk.
func Check(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for name := real; ; name = filepath.Dir(name) {
		if err := onlyOurs(name, name == real); err != nil {
			return err
		}
		if name == "/" {
			break
		}
	}
	machine, err := machineOf(real)
	if err != nil {
		return err
	}
	own, err := machineOf(Self)
	if err != nil {
		return err
	}
	if machine == nil || !bytes.Equal(machine, own) {
		return fmt.Errorf("%q is no program for this machine", path)
	}
	return nil
}

func onlyOurs(name string, program bool) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode()
	switch {
	case !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%q does not belong to root", name)
	case mode.Perm()&0o022 != 0 && (program || mode&os.ModeSticky == 0):
		return fmt.Errorf("%q has mode %04o, so others could put their own program there; take their right to write away", name, mode.Perm())
	case program && (!mode.IsRegular() || mode.Perm()&0o100 == 0):
		return fmt.Errorf("%q is not an executable file", name)
	}
	return nil
}

// machineOf returns what an ELF header says a file runs on (elf(5)): class, byte order and machine; nil without such a header.
func machineOf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var header [20]byte
	if _, err := f.ReadAt(header[:], 0); err != nil || string(header[:4]) != "\x7fELF" {
		return nil, nil
	}
	return binary.NativeEndian.AppendUint16(header[4:6:6], binary.NativeEndian.Uint16(header[18:20])), nil
}

// FileID names the file behind a path, "" when there is none. A file that is put in its place has another one. It blocks on
// the disk.
func FileID(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d:%d:%d", st.Dev, st.Ino, st.Size, st.Mtim.Nano())
}
