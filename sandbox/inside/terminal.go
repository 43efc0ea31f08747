package inside

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// terminal is a pseudoterminal of which a command has the other side.
type terminal struct{ master *os.File }

// newTerminal makes one. The caller closes the slave when the command has it.
func newTerminal(columns, rows uint16) (t *terminal, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	name := "/dev/pts/" + strconv.Itoa(n)
	sfd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("cannot open the terminal %s: %w", name, err)
	}
	t = &terminal{master}
	if columns > 0 && rows > 0 {
		t.resize(columns, rows)
	}
	return t, os.NewFile(uintptr(sfd), name), nil
}

func (t *terminal) resize(columns, rows uint16) {
	raw, err := t.master.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	})
}

// endInput tells a command that its client sends nothing more, as a person would by typing it.
func (t *terminal) endInput(over <-chan struct{}) {
	select {
	case <-over:
	default:
		_, _ = t.master.Write([]byte{4})
	}
}
