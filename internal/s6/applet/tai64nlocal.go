package applet

import (
	"bufio"
	"errors"
	"io"

	"hinit/internal/s6"
)

// tai64nlocal copies lines and writes the label at the beginning of a line as a time of day: local time, or with -g that
// of Greenwich. Lines without a label stay as they are. What has been read is written before more is waited for.
func tai64nlocal(c *Call) int {
	greenwich := false
	o := s6.Options{Words: c.Args, Plain: "g"}
	for {
		_, _, more, ok := o.Next()
		if !ok {
			return c.usage("[ -g ]")
		}
		if !more {
			break
		}
		greenwich = true
	}
	in := bufio.NewReaderSize(c.In, 1<<16)
	out := bufio.NewWriterSize(c.Out, 1<<16)
	stamp := make([]byte, 0, 32)
	for start := true; ; {
		piece, err := in.ReadSlice('\n') // of a long line, a part
		if start {
			if t, rest, ok := s6.ParseTAI64N(piece); ok {
				if greenwich {
					t = t.UTC()
				}
				stamp = s6.AppendLocalTime(stamp[:0], t)
				_, _ = out.Write(stamp) // Flush tells
				piece = rest
			}
		}
		_, _ = out.Write(piece) // Flush tells
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
