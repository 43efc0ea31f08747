package mux

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// Stream is one direction of a channel: one side writes frames, and the other side reads them. The reader confirms each frame
// when it has consumed it. At most [unconfirmed] frames may be unconfirmed.
type Stream struct {
	ch    *Channel
	kind  Kind
	reads bool // this side is the reader

	credits chan struct{} // one element for each frame that may be sent now
	closed  chan struct{} // closed when the stream has ended

	mu        sync.Mutex
	frames    chan []byte // received frames that are not consumed yet; closed at the end
	frame     []byte      // the frame that is being read
	frameRead int         // how many bytes of frame were read
	ended     bool
	err       error // returned by Read after the last byte
}

func newStream(ch *Channel, kind Kind, reads bool) *Stream {
	s := &Stream{ch: ch, kind: kind, reads: reads, credits: make(chan struct{}, unconfirmed), closed: make(chan struct{}), frames: make(chan []byte, unconfirmed)}
	for range unconfirmed {
		s.credits <- struct{}{}
	}
	return s
}

// errNoReader means that the stream has ended, and that the other side does not read the data any more.
var errNoReader = errors.New("nothing reads it any more")

// Write sends data. It blocks until the other side may receive another frame, see Stream.
func (s *Stream) Write(data []byte) (n int, err error) {
	for n < len(data) {
		select {
		case <-s.credits:
		case <-s.closed:
			return n, errNoReader
		}
		part := data[n:min(len(data), n+MaxData)]
		if err := s.ch.Send(s.kind, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// addCredit allows one more frame to be sent. It fails if no frame was unconfirmed.
func (s *Stream) addCredit() error {
	select {
	case s.credits <- struct{}{}:
		return nil
	default:
		return fmt.Errorf("%w: it confirms a frame that was not sent", ErrProtocol)
	}
}

// receive queues a received frame. It fails if the sender has exceeded the limit of unconfirmed frames.
func (s *Stream) receive(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.reads:
		return fmt.Errorf("%w: a stream in the wrong direction", ErrProtocol)
	case s.ended:
		return nil
	}
	select {
	case s.frames <- data:
		return nil
	default:
		return fmt.Errorf("%w: more than there is room for", ErrProtocol)
	}
}

// End ends the stream on this side: nothing more is written or received. [Stream.Read] returns the error err after the last byte.
// Only the first call has an effect.
func (s *Stream) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.err = true, err
		close(s.frames)
		close(s.closed)
	}
}

// confirm tells the other side that a frame was consumed.
func (s *Stream) confirm(frame []byte) {
	release(frame)
	_ = s.ch.Send(KindConfirm, []byte{byte(s.kind)}) // a writer that is gone needs no confirmation
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (n int, err error) {
	if s.frameRead == len(s.frame) {
		frame, more := <-s.frames
		if !more {
			return 0, s.err
		}
		s.frame, s.frameRead = frame, 0
	}
	n = copy(p, s.frame[s.frameRead:])
	if s.frameRead += n; s.frameRead == len(s.frame) {
		s.confirm(s.frame)
		s.frame, s.frameRead = nil, 0
	}
	return n, nil
}

// Deliver writes the received frames to w until the stream ends. After a write error it calls the function failed and discards
// the rest, so that the command does not block after its reader is gone. A nil w discards all data.
func (s *Stream) Deliver(w io.Writer, failed func(error)) (err error) {
	for frame := range s.frames {
		if w != nil && err == nil {
			if _, err = w.Write(frame); err != nil {
				failed(err)
			}
		}
		s.confirm(frame)
	}
	return err
}
