package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/proc"
	"hinit/internal/runs"
)

// gitMost bounds what is read of git's output.
const gitMost = 1 << 20

// Git runs git in a directory and returns what it wrote. The error has that too. It implements [kanban.Git], also where r is nil.
func (r *Runner) Git(ctx context.Context, dir string, args ...string) (string, error) {
	spec := proc.Spec{Argv: append([]string{"git"}, args...), Env: append(os.Environ(), "GIT_TERMINAL_PROMPT=0"), Dir: dir}
	run := child
	if r != nil {
		if here, is := r.host.(local); is {
			run = here.once
		}
	}
	text, code, err := run(ctx, spec)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, bytes.TrimSpace(text))
	}
	if err != nil {
		return string(text), fmt.Errorf("cannot run git %s: %w", strings.Join(args, " "), err)
	}
	return string(text), nil
}

// child runs a command in a process that has no supervisor.
func child(ctx context.Context, spec proc.Spec) (text []byte, code int, err error) {
	out, errs, x, err := proc.Output(ctx, spec, gitMost)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if code = x.Code; x.Signal != 0 {
		code = 128 + x.Signal
	}
	return append(out, errs...), code, err
}

// once runs a command as a run of the supervisor, which waits for every child of this process.
func (h local) once(ctx context.Context, spec proc.Spec) (text []byte, code int, err error) {
	fd, err := unix.MemfdCreate("git", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, 0, err
	}
	output := os.NewFile(uintptr(fd), "output of git")
	defer output.Close()
	dup, err := unix.FcntlInt(output.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, 0, err
	}
	run, err := h.book.Start(ctx, runs.Order{Tag: "git/" + h.book.Unique(), Template: "git", Spec: spec, Output: os.NewFile(uintptr(dup), "git")})
	for err == nil && run.End == nil {
		news := h.book.News()
		if run, err = h.book.Find(run.ID); err != nil || run.End != nil {
			break
		}
		select {
		case <-news:
		case <-ctx.Done():
			_, err = h.book.Stop(context.WithoutCancel(ctx), run.ID)
			return nil, 0, errors.Join(context.Cause(ctx), err)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	text, _ = io.ReadAll(io.NewSectionReader(output, 0, gitMost)) // memory
	code, err = exitCode(run)
	return text, code, err
}

func exitCode(run client.Run) (int, error) {
	switch {
	case run.End.Signal != nil:
		return 128 + *run.End.Signal, nil
	case run.End.Code != nil:
		return *run.End.Code, nil
	}
	return 0, errors.New(run.End.Error)
}
