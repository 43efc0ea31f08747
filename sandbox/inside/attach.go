package inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/sandbox/mux"
)

// startTime limits how long a newly started server may take until it listens.
const startTime = 10 * time.Second

// Attach connects the streams in and out with the helper's server in this container. If no server runs, it starts one: the
// program self with the arguments in the parameter serve. It returns when the connection or the input ends.
func Attach(self string, serve []string, in io.Reader, out io.Writer) error {
	conn, err := dial()
	if err != nil {
		if err := startServer(self, serve); err != nil {
			return err
		}
		for limit := time.Now().Add(startTime); ; {
			if conn, err = dial(); err == nil {
				break
			}
			if time.Now().After(limit) {
				return fmt.Errorf("cannot reach the program that serves: %w", err)
			}
			<-time.After(2 * time.Millisecond)
		}
	}
	defer conn.Close()
	if pipe, ok := out.(*os.File); ok {
		_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, 1<<20) // a larger pipe needs fewer writes; the kernel may refuse it
	}
	ended := make(chan error, 2)
	guard.Go("copying to the program that serves", func() {
		_, err := io.Copy(conn, in)
		ended <- err
	})
	guard.Go("copying from the program that serves", func() {
		// io.Copy would use splice, which wakes up the processes at both ends every few kilobytes.
		_, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{conn}, make([]byte, mux.MaxData))
		ended <- err
	})
	return <-ended
}

// startServer starts the server process, which outlives this process.
func startServer(self string, argv []string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	_, err = proc.StartChild(proc.Spec{Path: self, Argv: append([]string{self}, argv...), Env: os.Environ(), Files: []*os.File{null, null, null}})
	return err
}

func dial() (net.Conn, error) {
	var reasons []error
	for _, dir := range socketDirs() {
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", filepath.Join(dir, mux.Socket))
		if err == nil {
			return conn, nil
		}
		reasons = append(reasons, err)
	}
	return nil, errors.Join(reasons...)
}
