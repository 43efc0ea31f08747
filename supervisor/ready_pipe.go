package supervisor

import (
	"bytes"
	"fmt"
	"os"
)

// readinessPipe is the pipe on which a run writes a newline to say that it is ready. A goroutine reads the pipe until a newline, the
// end of the input, or a call of close.
type readinessPipe struct {
	fd   int // descriptor number of the writing end in the new process
	r, w *os.File
}

func newReadinessPipe(fd int) (*readinessPipe, error) {
	if fd < 1 || fd > MaxNotifyFD {
		return nil, fmt.Errorf("cannot listen for readiness on descriptor %d: it must be 1 to %d", fd, MaxNotifyFD)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make the pipe for readiness: %w", err)
	}
	return &readinessPipe{fd, r, w}, nil
}

// addTo extends the list files so that the write end of the pipe becomes descriptor fd of the new process. The descriptors that
// addTo adds below fd are closed in the new process.
func (n *readinessPipe) addTo(files []*os.File) []*os.File {
	if n == nil {
		return files
	}
	all := make([]*os.File, max(len(files), n.fd+1))
	copy(all, files)
	all[n.fd] = n.w
	return all
}

// closeWriter closes hinit's copy of the writing end. Call closeWriter after the process was started.
func (n *readinessPipe) closeWriter() { _ = n.w.Close() }

// close closes the reading end, which ends the goroutine.
func (n *readinessPipe) close() {
	if n != nil {
		_ = n.r.Close()
	}
}

// awaitNewline calls ready when it reads the first newline, and then returns. It ignores later output.
func (n *readinessPipe) awaitNewline(ready func()) {
	defer n.r.Close()
	buf := make([]byte, 256)
	for {
		got, err := n.r.Read(buf)
		if bytes.IndexByte(buf[:got], '\n') >= 0 {
			ready()
			return
		}
		if err != nil { // the process has closed the pipe, or close was called
			return
		}
	}
}
