package top

import (
	"context"
	"errors"
	"io"
	"os"

	"hinit/internal/cmdline"
	"hinit/internal/proc"
)

// shell runs hinit shell NAME for the terminal library: on the terminal of this process, while the screen waits.
type shell struct{ name string }

// Run runs the shell until it ends. The exit code of its last command is no error.
func (s shell) Run() error {
	hinit, err := cmdline.Beside("hinit")
	if err != nil {
		return err
	}
	_, err = proc.Run(context.Background(), proc.Spec{
		ID: 1, Argv: []string{hinit, "shell", s.name}, Env: os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Attached: true,
	})
	return err
}

// SetStdin implements tea.ExecCommand, as the next two methods do. They do nothing: the shell always has the files of this process.
func (shell) SetStdin(io.Reader) {}

// SetStdout implements tea.ExecCommand.
func (shell) SetStdout(io.Writer) {}

// SetStderr implements tea.ExecCommand.
func (shell) SetStderr(io.Writer) {}

// errElsewhere says why the screen opens no shell of a service in another container.
var errElsewhere = errors.New("cannot open a shell of another container: it is made from the configuration here; call hinit shell in that container")
