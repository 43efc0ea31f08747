package mux

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Version is of the protocol. Both sides must have the same.
const Version = 3

const (
	// MaxData is how much one frame of a stream holds at most. A request holds maxOpen: the kernel takes no longer command line. The end of
	// a channel holds maxEnd.
	MaxData = 128 << 10
	maxOpen = 4 << 20
	maxEnd  = 256 << 10
	// Window is how many bytes of one stream may be under way.
	Window = 512 << 10
	// MaxChannels is how many commands one connection has at the same time at most.
	MaxChannels = 4096

	headerSize = 9
)

// Kind is what a frame is.
type Kind uint8

// The kinds. "c" is sent by clients, "i" by the program inside.
const (
	KindHello    Kind = iota + 1 // both, first of all: Hello
	KindOpen                     // c: Open; the channel begins
	KindBegun                    // i: the process exists; its id, 4 bytes
	KindInput                    // c: standard input
	KindInputEnd                 // c
	KindOutput                   // i: standard output
	KindErrors                   // i: standard error
	KindRoom                     // both: the stream's kind and how many bytes more it may send, 1 and 4 bytes
	KindResize                   // c: columns and rows, 2 bytes each
	KindKill                     // c: end the whole tree; milliseconds between TERM and KILL, 4 bytes
	KindEnd                      // i: End; the channel ends
	KindPing                     // c: answered by a Pong
	KindPong                     // i
	kinds
)

// ErrProtocol is wrapped by errors that say that the other side does not keep to the protocol.
var ErrProtocol = errors.New("the other side does not keep to the protocol")

// Frame is one of a connection. Data is valid until the next is read.
type Frame struct {
	Kind    Kind
	Channel uint32
	Data    []byte
}

// most is how much a frame of a kind holds at most.
func most(kind Kind) int {
	switch kind {
	case KindOpen:
		return maxOpen
	case KindEnd:
		return maxEnd
	default:
		return MaxData
	}
}

// Reader reads frames.
type Reader struct {
	r    *bufio.Reader
	buf  []byte
	keep func(size int) error // refuses a request before it is read; nil takes all
}

// NewReader returns a reader. Its buffer is for headers: what is long is read past it.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 4<<10)} }

// Next reads a frame. At the end of the connection, between two frames, it returns io.EOF. A request that is refused comes with the error,
// and without its data.
func (r *Reader) Next() (Frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r.r, header[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(header[0]), Channel: binary.BigEndian.Uint32(header[1:])}
	size := binary.BigEndian.Uint32(header[5:])
	if f.Kind == 0 || f.Kind >= kinds || size > uint32(most(f.Kind)) {
		return Frame{}, fmt.Errorf("%w: a frame of kind %d with %d bytes", ErrProtocol, f.Kind, size)
	}
	if f.Kind == KindOpen && r.keep != nil {
		if err := r.keep(int(size)); err != nil {
			return f, err
		}
	}
	if size > MaxData { // it takes no more memory than what has come of it
		var long bytes.Buffer
		_, err := io.CopyN(&long, r.r, int64(size))
		f.Data = long.Bytes()
		return f, unexpected(err)
	}
	if int(size) > cap(r.buf) {
		r.buf = make([]byte, max(int(size), 4<<10))
	}
	f.Data = r.buf[:size]
	_, err := io.ReadFull(r.r, f.Data)
	return f, unexpected(err)
}

// unexpected is the error of a frame that is cut short.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Writer writes frames, each with one Write. Any number of goroutines may use it.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
	err error
}

// NewWriter returns a writer.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes a frame. It blocks as long as the other side doesn't read. A frame whose write failed was not received as a whole;
// all later ones fail too.
func (w *Writer) Write(kind Kind, channel uint32, data []byte) error {
	if len(data) > most(kind) {
		return fmt.Errorf("cannot send a frame of %d bytes: the limit is %d", len(data), most(kind))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.buf = append(w.buf[:0], byte(kind))
	w.buf = binary.BigEndian.AppendUint32(w.buf, channel)
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(len(data)))
	w.buf = append(w.buf, data...)
	_, w.err = w.w.Write(w.buf)
	if cap(w.buf) > 8<<10 && len(w.buf) < 4<<10 {
		w.buf = nil // an idle connection is to be small
	}
	return w.err
}

// WriteJSON writes a frame with a message in it.
func (w *Writer) WriteJSON(kind Kind, channel uint32, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode a message: %w", err)
	}
	return w.Write(kind, channel, data)
}

// Number encodes the data of a frame that is one number.
func Number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// ParseNumber decodes it.
func ParseNumber(data []byte) (uint32, error) {
	if len(data) != 4 {
		return 0, fmt.Errorf("%w: %d bytes where a number belongs", ErrProtocol, len(data))
	}
	return binary.BigEndian.Uint32(data), nil
}

// Room encodes how much more of a stream may be sent.
func Room(stream Kind, n int) []byte {
	return binary.BigEndian.AppendUint32([]byte{byte(stream)}, uint32(n))
}
