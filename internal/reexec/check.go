package reexec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// openProgram opens the file at path, and returns an error if hinit must not execute it. The file must be a program for this
// machine, and only root or hinit's user may be able to write or replace it. openProgram blocks on the disk.
func openProgram(path string) (*os.File, error) {
	fd, violation, err := trust.OpenAnyMount(path, trust.OwnedBy(uint32(os.Geteuid())))
	if err != nil {
		return nil, fmt.Errorf("cannot look at %q: %w", path, err)
	}
	self, _ := os.Open(SelfExe) // nil without /proc; then openProgram refuses every program
	defer self.Close()
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	machine := elfMachine(f)
	switch {
	case err != nil:
	case violation != nil:
		err = fmt.Errorf("others could put their own program in the place of %q: %s", path, violation)
	case info.Mode().Perm()&0o100 == 0:
		err = fmt.Errorf("%q is not an executable file", path)
	case machine == nil || !bytes.Equal(machine, elfMachine(self)):
		err = fmt.Errorf("%q is no program for this machine", path)
	default:
		return f, nil
	}
	_ = f.Close()
	return nil, err
}

// elfMachine returns the class, byte order and machine in the ELF header of a program (elf(5)), or nil without such a header.
func elfMachine(f *os.File) []byte {
	var header [20]byte
	if _, err := f.ReadAt(header[:], 0); err != nil || string(header[:4]) != "\x7fELF" {
		return nil
	}
	return binary.NativeEndian.AppendUint16(header[4:6:6], binary.NativeEndian.Uint16(header[18:20]))
}

// FileID returns a text that changes when the file at path is replaced or modified; "" for a missing file. It blocks on the
// disk.
func FileID(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d:%d:%d", st.Dev, st.Ino, st.Size, st.Mtim.Nano())
}
