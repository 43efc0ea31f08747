package supervisor

import (
	"bytes"
	"fmt"
	"os"
)

// notifier is the pipe on which a run writes a newline when it is ready. Its goroutine reads until then, until no writer is left,
// or until end.
type notifier struct {
	fd   int // in the process
	r, w *os.File
}

func newNotifier(fd int) (*notifier, error) {
	if fd < 1 || fd > MaxNotifyFD {
		return nil, fmt.Errorf("cannot listen for readiness on descriptor %d: it must be 1 to %d", fd, MaxNotifyFD)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make the pipe for readiness: %w", err)
	}
	return &notifier{fd, r, w}, nil
}

// among returns files with the writing end at its place; what lies between is closed in the process.
func (n *notifier) among(files []*os.File) []*os.File {
	if n == nil {
		return files
	}
	all := make([]*os.File, max(len(files), n.fd+1))
	copy(all, files)
	all[n.fd] = n.w
	return all
}

// started closes the writing end: the process has its own.
func (n *notifier) started() { _ = n.w.Close() }

// end ends the goroutine.
func (n *notifier) end() {
	if n != nil {
		_ = n.r.Close()
	}
}

// listen calls ready when the first newline comes. Later output is not read.
func (n *notifier) listen(ready func()) {
	defer n.r.Close()
	buf := make([]byte, 256)
	for {
		got, err := n.r.Read(buf)
		if bytes.IndexByte(buf[:got], '\n') >= 0 {
			ready()
			return
		}
		if err != nil { // end of file, or end
			return
		}
	}
}
