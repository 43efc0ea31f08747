package script_test

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// terminal is the outer end of a pseudo-terminal.
type terminal struct {
	master *os.File
	log    *os.File
}

// openTerminal returns a pseudo-terminal of 120 columns and 40 rows whose output goes to a file, and its inner end.
func openTerminal(log string) (*terminal, *os.File, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	raw, err := master.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var number int
	var failed error
	err = raw.Control(func(fd uintptr) {
		if failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); failed != nil {
			return
		}
		if number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); failed != nil {
			return
		}
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120})
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, nil, err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	file, err := os.Create(log)
	if err != nil {
		return nil, nil, err
	}
	return &terminal{master, file}, slave, nil
}

func (t *terminal) resize(rows, columns uint16) error {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	return errors.Join(err, failed)
}

// record copies what appears on the terminal until nobody has it open any more.
func (t *terminal) record() {
	_, _ = io.Copy(t.log, t.master) // ends with EIO
	_ = t.log.Close()
}
