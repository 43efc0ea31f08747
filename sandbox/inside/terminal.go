package inside

import (
	"os"

	"hinit/internal/pty"
)

// terminal is a pseudoterminal of which a command has the other side.
type terminal struct{ master *os.File }

// newTerminal makes one. The caller closes the slave when the command has it.
func newTerminal(columns, rows uint16) (t *terminal, slave *os.File, err error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	t = &terminal{master}
	if columns > 0 && rows > 0 {
		t.resize(columns, rows)
	}
	return t, slave, nil
}

func (t *terminal) resize(columns, rows uint16) { pty.Resize(t.master, columns, rows) }

// endInput tells a command that its client sends nothing more, as a person would by typing it.
func (t *terminal) endInput(over <-chan struct{}) {
	select {
	case <-over:
	default:
		_, _ = t.master.Write([]byte{4})
	}
}
