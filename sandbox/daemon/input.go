package daemon

import (
	"encoding/json"
	"io"
	"sync"

	"hinit/sandbox"
)

// input is what a caller sends while its command runs.
type input struct {
	frames  *frames
	in      *window // nil when no standard input is sent
	resizes chan sandbox.Size
	signals chan sandbox.SignalNo
}

func newInput(f *frames, stdin bool) *input {
	i := &input{frames: f, resizes: make(chan sandbox.Size, 1), signals: make(chan sandbox.SignalNo, 8)}
	if stdin {
		i.in = newWindow(func(n int) { _ = f.writeJSON(kindCredit, n) }) // whoever has gone needs no credit
	}
	return i
}

func (i *input) streams() Streams {
	s := Streams{Out: stream{i.frames, kindStdout}, Err: stream{i.frames, kindStderr}, Resizes: i.resizes, Signals: i.signals}
	if i.in != nil {
		s.In = i.in
	}
	return s
}

// read returns when the caller has gone, or says something that makes no sense. It never waits for the command.
func (i *input) read(buf *[]byte) {
	defer func() {
		if i.in != nil {
			i.in.end(io.ErrUnexpectedEOF) // an end that was sent came first
		}
	}()
	for {
		k, data, err := i.frames.read(buf, frameMost)
		if err != nil {
			return
		}
		switch k {
		case kindStdin:
			if i.in == nil || !i.in.add(data) {
				return
			}
		case kindStdinEnd:
			if i.in != nil {
				i.in.end(io.EOF)
			}
		case kindResize:
			var size sandbox.Size
			if json.Unmarshal(data, &size) == nil {
				select {
				case <-i.resizes: // an older one that nobody has taken yet
				default:
				}
				i.resizes <- size
			}
		case kindSignal:
			var sig sandbox.SignalNo
			if json.Unmarshal(data, &sig) == nil {
				select {
				case i.signals <- sig:
				default: // the command does not take them; one too many says nothing new
				}
			}
		default:
			return
		}
	}
}

// windowSize is how much standard input may be under way to a command that has not read it.
const windowSize = 256 << 10

// window holds standard input until the command reads it. The sender may be ahead by windowSize.
type window struct {
	read func(n int) // is told what was taken

	mu    sync.Mutex
	ready *sync.Cond
	data  []byte
	err   error // after the data
}

func newWindow(read func(int)) *window {
	w := &window{read: read}
	w.ready = sync.NewCond(&w.mu)
	return w
}

// add keeps data; false: the sender does not keep to the window.
func (w *window) add(data []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.data = append(w.data, data...)
	}
	w.ready.Broadcast()
	return len(w.data) <= windowSize
}

// end says what comes after the data. The first one counts.
func (w *window) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.ready.Broadcast()
}

// Read implements io.Reader.
func (w *window) Read(buf []byte) (int, error) {
	w.mu.Lock()
	for len(w.data) == 0 && w.err == nil {
		w.ready.Wait()
	}
	n := copy(buf, w.data)
	w.data = w.data[n:]
	err := w.err
	left := len(w.data)
	w.mu.Unlock()
	if n > 0 {
		w.read(n)
	}
	if n > 0 || left > 0 {
		err = nil
	}
	return n, err
}
