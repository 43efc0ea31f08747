package mux

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Version is of the protocol. Both sides must have the same.
const Version = 2

const (
	// MaxData is how much one frame holds at most.
	MaxData = 128 << 10
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
	KindSignal                   // not used
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

// Reader reads frames.
type Reader struct {
	r   *bufio.Reader
	buf []byte
}

// NewReader returns a reader. Its buffer is for headers: what is long is read past it.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 4<<10)} }

// Next reads a frame. At the end of the connection, between two frames, it returns io.EOF.
func (r *Reader) Next() (Frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r.r, header[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(header[0]), Channel: binary.BigEndian.Uint32(header[1:])}
	size := binary.BigEndian.Uint32(header[5:])
	if f.Kind == 0 || f.Kind >= kinds || size > MaxData {
		return Frame{}, fmt.Errorf("%w: a frame of kind %d with %d bytes", ErrProtocol, f.Kind, size)
	}
	if int(size) > cap(r.buf) {
		r.buf = make([]byte, max(int(size), 4<<10))
	}
	f.Data = r.buf[:size]
	if _, err := io.ReadFull(r.r, f.Data); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
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
	if len(data) > MaxData {
		return fmt.Errorf("cannot send a frame of %d bytes: the limit is %d", len(data), MaxData)
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

// WriteJSON writes a frame with a message in it, several if it is long: all but the last are full.
func (w *Writer) WriteJSON(kind Kind, channel uint32, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode a message: %w", err)
	}
	for len(data) >= MaxData {
		if err := w.Write(kind, channel, data[:MaxData]); err != nil {
			return err
		}
		data = data[MaxData:]
	}
	return w.Write(kind, channel, data)
}

// Limits of messages: a request (the kernel takes no longer command line), the end of a channel, and all incomplete messages of
// one connection.
const (
	maxOpen   = 4 << 20
	maxEnd    = 256 << 10
	maxHalves = 8 << 20
)

// Gather puts the frames of long messages together. It is of one connection.
type Gather struct {
	held map[uint32][]byte
	size int             // of all that is held
	keep func(int) error // refuses a part; nil takes all
}

// Add takes a frame and decodes the message into it when it is whole.
func (g *Gather) Add(f Frame, message any) (whole bool, err error) {
	most := maxOpen
	if f.Kind == KindEnd {
		most = maxEnd
	}
	if g.keep != nil {
		if err := g.keep(len(f.Data)); err != nil {
			return false, err
		}
	}
	data := f.Data
	if held := g.held[f.Channel]; len(held) > 0 || len(f.Data) == MaxData {
		data = append(held, f.Data...)
		g.size += len(f.Data)
	}
	if len(data) > most || g.size > maxHalves {
		return false, fmt.Errorf("%w: a message of more than %d bytes", ErrProtocol, most)
	}
	if len(f.Data) == MaxData {
		if g.held == nil {
			g.held = make(map[uint32][]byte)
		}
		g.held[f.Channel] = data
		return false, nil
	}
	if g.held[f.Channel] != nil {
		delete(g.held, f.Channel)
		g.size -= len(data)
	}
	if err := json.Unmarshal(data, message); err != nil {
		return false, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return true, nil
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
