package reexec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// CheckProgram returns an error if hinit must not execute the file at path. The file must be a program for this machine, and
// only root or hinit's user may be able to write or replace it. CheckProgram blocks on the disk.
func CheckProgram(path string) error {
	fd, doubt, err := trust.OpenAnyMount(path, trust.OwnedBy(uint32(os.Geteuid())))
	if err != nil {
		return fmt.Errorf("cannot look at %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	self, err := os.Open(SelfExe)
	if err != nil {
		return err
	}
	defer self.Close()
	info, err := f.Stat()
	machine := machineOf(f)
	switch {
	case err != nil:
		return err
	case doubt != nil:
		return fmt.Errorf("others could put their own program in the place of %q: %s", path, doubt)
	case info.Mode().Perm()&0o100 == 0:
		return fmt.Errorf("%q is not an executable file", path)
	case machine == nil || !bytes.Equal(machine, machineOf(self)):
		return fmt.Errorf("%q is no program for this machine", path)
	}
	return nil
}

// machineOf returns the class, byte order and machine in the ELF header of a program (elf(5)), or nil if there is no such
// header.
func machineOf(f *os.File) []byte {
	var header [20]byte
	if _, err := f.ReadAt(header[:], 0); err != nil || string(header[:4]) != "\x7fELF" {
		return nil
	}
	return binary.NativeEndian.AppendUint16(header[4:6:6], binary.NativeEndian.Uint16(header[18:20]))
}

// FileID returns a text that changes when the file at path is replaced or modified; "" if there is no file. It blocks on the
// disk.
func FileID(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d:%d:%d", st.Dev, st.Ino, st.Size, st.Mtim.Nano())
}
