package applet

import (
	"bufio"
	"errors"
	"io"
	"time"

	"hinit/internal/s6/formats"
)

// runTAI64NLocal copies lines, and replaces a TAI64N label at the beginning of a line by the local time, or with -g by UTC. It
// writes all lines that it has read before it waits for more input.
func runTAI64NLocal(c *Invocation, options []option) int {
	greenwich := len(options) > 0
	in := bufio.NewReaderSize(c.In, 1<<16)
	out := bufio.NewWriterSize(c.Out, 1<<16)
	stamp := make([]byte, 0, 32)
	for start := true; ; {
		piece, err := in.ReadSlice('\n') // a very long line comes in several pieces
		if start {
			if t, rest, ok := formats.ParseTAI64N(piece); ok {
				if greenwich {
					t = t.UTC()
				}
				stamp = appendLocalTime(stamp[:0], t)
				_, _ = out.Write(stamp)
				piece = rest
			}
		}
		_, _ = out.Write(piece)
		start = err == nil
		if in.Buffered() == 0 || err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if err := out.Flush(); err != nil {
				return c.fatal(exitSystemError, "unable to write to stdout: "+strerror(err))
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return exitDone
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return c.fatal(exitSystemError, "unable to read from stdin: "+strerror(err))
		}
	}
}

// appendLocalTime appends a time as s6 prints it: date, space, and time of day with nine decimals. It uses the time zone of t and
// omits the zone's name.
func appendLocalTime(b []byte, t time.Time) []byte {
	return t.AppendFormat(b, "2006-01-02 15:04:05.000000000")
}
