package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/internal/web"
)

// beside are the programs that know of boards and sandboxes. They are installed beside this one, and run as its user: root does not open
// the agent's files, so it is shown no boards.
func (c *call) beside() web.Beside {
	b := web.Beside{Sandboxes: func(ctx context.Context, home string) ([]byte, error) {
		if _, err := os.Stat(config.SandboxSocket(c.Env)); err != nil {
			return nil, fs.ErrNotExist // nobody serves them here
		}
		return output(ctx, home, "hinit-sandbox", "ls", "--json")
	}}
	if os.Geteuid() != 0 {
		b.Boards = func(ctx context.Context, home string) ([]byte, error) {
			return output(ctx, home, "hinit-kanban", "stats", "--all")
		}
	}
	return b
}

// mostOutput is how much is read of what a program prints.
const mostOutput = 8 << 20

// output runs a program of hinit for a home and returns what it prints. The error is [fs.ErrNotExist] where it is not installed.
func output(ctx context.Context, home, name string, args ...string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(program); err != nil {
		return nil, err
	}
	var files [3]*os.File
	if files[0], err = os.Open(os.DevNull); err != nil {
		return nil, err
	}
	defer files[0].Close()
	for i := 1; i < len(files); i++ {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		files[i] = os.NewFile(uintptr(fd), name)
		defer files[i].Close()
	}
	env := os.Environ()
	if home != "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	x, err := proc.Run(ctx, proc.Spec{Path: program, Argv: append([]string{name}, args...), Env: env, Files: files[:]})
	if err != nil {
		return nil, err
	}
	said := func(f *os.File) []byte {
		text, _ := io.ReadAll(io.NewSectionReader(f, 0, mostOutput)) // memory
		return text
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cannot ask %s: it does not answer", name)
	case x.Code != 0 || x.Signal != 0:
		why, _, _ := bytes.Cut(said(files[2]), []byte{'\n'})
		return nil, fmt.Errorf("cannot ask %s: %s", name, why)
	}
	return said(files[1]), nil
}
