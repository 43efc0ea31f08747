package mux

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// Stream is one direction of a channel: one side writes frames, and the other side reads them. The reader confirms each frame
// when it has consumed it. At most [unconfirmed] frames are under way.
type Stream struct {
	ch    *Channel
	kind  Kind
	reads bool // this side reads

	credits chan struct{} // one element for each frame that may be written
	closed  chan struct{} // closed when nothing reads any more

	mu        sync.Mutex
	frames    chan []byte // received frames that were not consumed yet; closed at the end
	frame     []byte      // frame that is read at present
	frameRead int         // number of its bytes that were read
	ended     bool
	err       error // result of Read after the last byte
}

func newStream(ch *Channel, kind Kind, reads bool) *Stream {
	s := &Stream{ch: ch, kind: kind, reads: reads, credits: make(chan struct{}, unconfirmed), closed: make(chan struct{}), frames: make(chan []byte, unconfirmed)}
	for range unconfirmed {
		s.credits <- struct{}{}
	}
	return s
}

// errNoReader means that the other side reads no more of a stream.
var errNoReader = errors.New("nothing reads it any more")

// Write sends data as fast as the other side consumes it.
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

// addCredit allows another frame. It fails if none is under way.
func (s *Stream) addCredit() error {
	select {
	case s.credits <- struct{}{}:
		return nil
	default:
		return fmt.Errorf("%w: it confirms a frame that was not sent", ErrProtocol)
	}
}

// receive adds a received frame. It fails if the sender did not wait for room.
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

// End ends the stream on this side: nothing more is written or received. err is the result of [Stream.Read] after the last byte.
// The first call counts.
func (s *Stream) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.err = true, err
		close(s.frames)
		close(s.closed)
	}
}

// confirm lets the other side send another frame.
func (s *Stream) confirm(frame []byte) {
	release(frame)
	_ = s.ch.Send(KindConfirm, []byte{byte(s.kind)}) // a writer that has gone needs no confirmation
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

// Deliver writes the received frames to w until the stream ends. After an error it calls failed and drops the rest, so that no
// command waits for a reader that has gone. A nil w drops everything.
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
