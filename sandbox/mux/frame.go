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

// Version is the version of the protocol. A connection between sides with different versions is refused.
const Version = 4

const (
	// MaxData is the maximum number of bytes in one frame of a stream. maxOpenBytes limits a request, and maxEndBytes the
	// message that ends a channel. The kernel accepts no command line that is longer than maxOpenBytes. A list of MaxJobs
	// commands is shorter than maxEndBytes.
	MaxData      = 128 << 10
	maxOpenBytes = 4 << 20
	maxEndBytes  = 512 << 10
	// maxUnconfirmed is how many frames of a stream the writer may send before the receiver has consumed the first. It limits
	// the receiver's memory.
	maxUnconfirmed = 4
	// StreamWindow is the maximum number of bytes of a stream that were sent and not yet consumed.
	StreamWindow = maxUnconfirmed * MaxData
	// MaxChannels limits the concurrent commands on one connection.
	MaxChannels = 4096

	headerSize = 9
)

// Kind says what a frame carries. It is in the frame's header.
type Kind uint8

// The kinds of frames. "Helper" means the serving side: the helper in the sandbox, or the service.
const (
	KindHello    Kind = iota + 1 // Sent first by both sides; the data are a Hello.
	KindOpen                     // Sent by clients to open the channel; the data are an Open.
	KindBegun                    // Sent by the helper when the process has started; the data are its process ID, 4 bytes.
	KindInput                    // Sent by clients: data for standard input.
	KindInputEnd                 // Sent by clients at the end of standard input.
	KindOutput                   // Sent by the helper: data from standard output.
	KindErrors                   // Sent by the helper: data from standard error.
	KindConfirm                  // Sent by both sides when a stream's frame was consumed; the data are the stream's kind, 1 byte.
	KindResize                   // Sent by clients: the terminal's new columns and rows, 2 bytes each.
	KindKill                     // Sent by clients to end the process tree; the data are the milliseconds from SIGTERM to SIGKILL, 4 bytes.
	KindEnd                      // Sent by the helper to close the channel; the data are an End.
	KindPing                     // Sent by clients to request a Pong.
	KindPong                     // Sent by the helper in answer to a Ping.
	kindCount
)

// ErrProtocol means that the other side has violated the protocol. The errors of this package wrap it.
var ErrProtocol = errors.New("the other side does not keep to the protocol")

// Frame is one frame of a connection. Channel is 0 in frames that belong to no channel, such as Hello and Ping.
type Frame struct {
	Kind    Kind
	Channel uint32
	Data    []byte
}

// maxSizeOfKind are the kinds of frames whose data may be longer than MaxData, with their limits.
var maxSizeOfKind = map[Kind]int{KindOpen: maxOpenBytes, KindEnd: maxEndBytes}

// maxSize returns the maximum number of data bytes in a frame of the given kind.
func maxSize(kind Kind) int { return max(maxSizeOfKind[kind], MaxData) }

// Reader reads frames. Only one goroutine may use it.
type Reader struct {
	r        *bufio.Reader
	longKind Kind // Kind whose frames may exceed MaxData, see maxSizeOfKind; 0: none.
	// Function that gets the size of a request before its data is read, and refuses the request by an error; nil: accept all.
	acceptSize func(size int) error
}

// NewReader returns a Reader that reads from r. Its buffer is small, because it is only used for headers and short frames.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReaderSize(r, 4<<10)} }

// Next reads a frame. It returns io.EOF if the connection ends between two frames. If acceptSize refuses a request, Next returns
// the frame without its data, and the error of acceptSize.
func (r *Reader) Next() (Frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r.r, header[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(header[0]), Channel: binary.BigEndian.Uint32(header[1:])}
	size, most := binary.BigEndian.Uint32(header[5:]), MaxData
	if f.Kind == r.longKind {
		most = maxSize(f.Kind)
	}
	if f.Kind == 0 || f.Kind >= kindCount || size > uint32(most) {
		return Frame{}, fmt.Errorf("%w: a frame of kind %d with %d bytes", ErrProtocol, f.Kind, size)
	}
	if f.Kind == KindOpen && r.acceptSize != nil {
		if err := r.acceptSize(int(size)); err != nil {
			return f, err
		}
	}
	f.Data = getBuffer(int(size))
	_, err := io.ReadFull(r.r, f.Data)
	return f, err
}

// buffers is a pool of buffers for the data of long frames.
var buffers = sync.Pool{New: func() any { return new([MaxData]byte) }}

// getBuffer returns a buffer of the given size. The caller returns it with [putBuffer].
func getBuffer(size int) []byte {
	if size <= 4<<10 || size > MaxData {
		return make([]byte, size)
	}
	return buffers.Get().(*[MaxData]byte)[:size]
}

func putBuffer(data []byte) {
	if cap(data) == MaxData {
		buffers.Put((*[MaxData]byte)(data[:MaxData]))
	}
}

// Writer writes frames. Several goroutines may use it.
type Writer struct {
	mu sync.Mutex
	w  *bufio.Writer
}

// NewWriter returns a Writer that writes to w. Its buffer is small, because the data of long frames is written without it.
func NewWriter(w io.Writer) *Writer { return &Writer{w: bufio.NewWriterSize(w, 4<<10)} }

// Write writes a frame. It blocks while the other side doesn't read. After an error, the frame is incomplete on the other side,
// so all later writes fail too.
func (w *Writer) Write(kind Kind, channel uint32, data []byte) error {
	if len(data) > maxSize(kind) {
		return fmt.Errorf("cannot send a frame of %d bytes: the limit is %d", len(data), maxSize(kind))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	header := binary.BigEndian.AppendUint32([]byte{byte(kind)}, channel)
	// Ignore the error: Flush returns the first error of all these writes.
	_, _ = w.w.Write(binary.BigEndian.AppendUint32(header, uint32(len(data))))
	_, _ = w.w.Write(data)
	return w.w.Flush()
}

// WriteJSON writes a frame whose data is a message in JSON.
func (w *Writer) WriteJSON(kind Kind, channel uint32, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode a message: %w", err)
	}
	return w.Write(kind, channel, data)
}

// EncodeNumber encodes the data of a frame that consists of one number.
func EncodeNumber(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// ParseNumber decodes the data of a frame that consists of one number.
func ParseNumber(data []byte) (uint32, error) {
	if len(data) != 4 {
		return 0, fmt.Errorf("%w: %d bytes where a number belongs", ErrProtocol, len(data))
	}
	return binary.BigEndian.Uint32(data), nil
}
