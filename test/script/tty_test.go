package script_test

import (
	"io"
	"os"

	"hinit/internal/testkit"
)

// terminal is the outer end of a pseudo-terminal.
type terminal struct {
	master *os.File
	log    *os.File
}

// openTerminal returns both ends of a pseudo-terminal, whose output is logged to a file.
func openTerminal(log string) (*terminal, *os.File, error) {
	master, slave, err := testkit.OpenTerminal(40, 120)
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
	return testkit.ResizeTerminal(t.master, rows, columns)
}

// record copies the output of the terminal until it is closed.
func (t *terminal) record() {
	_, _ = io.Copy(t.log, t.master) // An error means that the terminal was closed (EIO).
	_ = t.log.Close()
}
