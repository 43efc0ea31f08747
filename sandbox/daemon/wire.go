package daemon

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"hinit/sandbox"
)

// Request is one command line.
type Request struct {
	Docker bool              `json:"docker,omitempty"` // the docker command's, else that of hinit sandbox
	Args   []string          `json:"args"`
	Home   string            `json:"home,omitempty"`  // HERMES_HOME of the caller: which profile it says it is
	Env    map[string]string `json:"env,omitempty"`   // of the variables that the command line names
	Stdin  bool              `json:"stdin,omitempty"` // standard input is sent
	TTY    bool              `json:"tty,omitempty"`   // standard input is a terminal, of this size
	Size   sandbox.Size      `json:"size,omitzero"`
}

// What a frame is.
type kind byte

const (
	kindRequest  kind = 'R'
	kindStdin    kind = 'i'
	kindStdinEnd kind = 'e'
	kindResize   kind = 'w'
	kindSignal   kind = 's'
	kindCredit   kind = 'c' // bytes of standard input that the command has read
	kindStdout   kind = 'o'
	kindStderr   kind = 'x'
	kindExit     kind = 'q'
)

const (
	frameMost   = 64 << 10 // of data
	requestMost = 4 << 20  // of a command line and its variables: the kernel's own limit is near
)

// frames reads and writes frames: the kind, four bytes of length, the data. Writing may be done by several goroutines.
type frames struct {
	r   io.Reader
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

func (f *frames) write(k kind, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(binary.BigEndian.AppendUint32(append(f.buf[:0], byte(k)), uint32(len(data))), data...)
	_, err := f.w.Write(f.buf)
	if cap(f.buf) > 8<<10 && len(data) < 4<<10 {
		f.buf = nil // an idle connection is to be small
	}
	return err
}

func (f *frames) writeJSON(k kind, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.write(k, data)
}

// read returns the next frame. The data is good until the next read.
func (f *frames) read(buf *[]byte, most int) (kind, []byte, error) {
	k, n, err := f.head(most)
	if err != nil {
		return 0, nil, err
	}
	data, err := f.body(buf, n)
	return k, data, err
}

// head reads what the next frame is, and how long.
func (f *frames) head(most int) (kind, int, error) {
	var head [5]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, 0, err
	}
	n := int(binary.BigEndian.Uint32(head[1:]))
	if n > most {
		return 0, 0, fmt.Errorf("a frame of %d bytes is too long", n)
	}
	return kind(head[0]), n, nil
}

// body reads the data of a frame.
func (f *frames) body(buf *[]byte, n int) ([]byte, error) {
	if cap(*buf) < n {
		*buf = make([]byte, n)
	}
	data := (*buf)[:n]
	_, err := io.ReadFull(f.r, data)
	return data, err
}

// stream writes what it is given as frames of one kind.
type stream struct {
	frames *frames
	kind   kind
}

func (s stream) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		n := min(len(data), frameMost)
		if err := s.frames.write(s.kind, data[:n]); err != nil {
			return written, err
		}
		written, data = written+n, data[n:]
	}
	return written, nil
}
