package container

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// checkImage says why a file must not become PID 1, if so. It looks at what a program of PID 1 must be in any case: a binary of
// this machine that nobody but root, or the user hinit runs as, can write or put another in the place of.
func checkImage(path string) error {
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
	f, err := os.Open(real)
	if err != nil {
		return err
	}
	defer f.Close()
	own, err := os.Open(selfImage)
	if err != nil {
		return err
	}
	defer own.Close()
	if machine := machineOf(f); machine == nil || !bytes.Equal(machine, machineOf(own)) {
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

// machineOf returns the parts of an ELF header that say what it runs on (elf(5)): class, byte order and machine.
func machineOf(f *os.File) []byte {
	var header [20]byte
	if _, err := f.ReadAt(header[:], 0); err != nil || string(header[:4]) != "\x7fELF" {
		return nil
	}
	return binary.NativeEndian.AppendUint16(header[4:6:6], binary.NativeEndian.Uint16(header[18:20]))
}
