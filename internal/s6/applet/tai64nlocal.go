package applet

import (
	"bufio"
	"errors"
	"io"
	"time"

	"hinit/internal/s6/formats"
)

// tai64nlocal copies lines. A TAI64N label at the beginning of a line is replaced by the local time, or with -g by UTC. Before it
// waits for more input, it writes all that it has read.
func tai64nlocal(c *Call, options []option) int {
	greenwich := len(options) > 0
	in := bufio.NewReaderSize(c.In, 1<<16)
	out := bufio.NewWriterSize(c.Out, 1<<16)
	stamp := make([]byte, 0, 32)
	for start := true; ; {
		piece, err := in.ReadSlice('\n') // a long line comes in pieces
		if start {
			if t, rest, ok := formats.ParseTAI64N(piece); ok {
				if greenwich {
					t = t.UTC()
				}
				stamp = appendLocalTime(stamp[:0], t)
				_, _ = out.Write(stamp) // Flush returns the error
				piece = rest
			}
		}
		_, _ = out.Write(piece) // Flush returns the error
		start = err == nil
		if in.Buffered() == 0 || err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if err := out.Flush(); err != nil {
				return c.fatal(exitSystem, "unable to write to stdout: "+strerror(err))
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return exitDone
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return c.fatal(exitSystem, "unable to read from stdin: "+strerror(err))
		}
	}
}

// appendLocalTime appends a time as s6 prints it: date, space, and time with nine decimals, in the time zone of t, without its
// name.
func appendLocalTime(b []byte, t time.Time) []byte {
	return t.AppendFormat(b, "2006-01-02 15:04:05.000000000")
}
