package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// started is one start of a program.
type started struct {
	pid int // PID in this program's namespace.
	at  time.Time
}

// watch reports each execution of a program, through fanotify(7). It needs no polling and costs the
// candidates almost nothing.
type watch struct {
	events chan started
	file   *os.File
}

// startsKept is the buffer size of the channel of starts.
const startsKept = 8192

func watchStarts(program string) (*watch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot watch what is started: %w", err)
	}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_EXEC, unix.AT_FDCWD, program); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot watch %q: %w", program, err)
	}
	w := &watch{events: make(chan started, startsKept), file: os.NewFile(uintptr(fd), "fanotify")}
	go w.read()
	return w, nil
}

// read takes the events from the kernel until the watch is closed.
func (w *watch) read() {
	defer close(w.events)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		now := time.Now()
		const header = 24 // Size of struct fanotify_event_metadata: length, version, reserved, metadata length, mask, fd, pid.
		for b := buf[:n]; len(b) >= header; {
			length := binary.NativeEndian.Uint32(b)
			if fd := int32(binary.NativeEndian.Uint32(b[16:])); fd >= 0 {
				unix.Close(int(fd))
			}
			select {
			case w.events <- started{int(int32(binary.NativeEndian.Uint32(b[20:]))), now}:
			default: // The channel is full, so drop this start.
			}
			if length < header || int(length) > len(b) {
				break
			}
			b = b[length:]
		}
	}
}

func (w *watch) close() { w.file.Close() }

// forget drops the starts so far.
func (w *watch) forget() {
	for {
		select {
		case <-w.events:
		default:
			return
		}
	}
}

// wait returns the time of the program's n-th start since the last call.
func (w *watch) wait(n int, i *instance) (time.Time, error) {
	last, err := w.next(n, i)
	return last.at, err
}

// next waits like wait, and returns the last start.
func (w *watch) next(n int, i *instance) (started, error) {
	var last started
	limit := time.After(patience)
	for seen := range n {
		select {
		case e, ok := <-w.events:
			if !ok {
				return last, errors.New("the watch has ended")
			}
			last = e
		case <-i.ended:
			return last, fmt.Errorf("it ended when %d of %d services were started", seen, n)
		case <-limit:
			return last, fmt.Errorf("%d of %d services were started within %s", seen, n, patience)
		}
	}
	return last, nil
}
