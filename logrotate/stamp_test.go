package logrotate

import (
	"testing"
	"time"

	"hinit/logrotate/reader"
)

func TestSplit(t *testing.T) {
	now := time.Now()
	prefix := appendStamp(nil, now)
	written, message, ok := reader.SplitLine(append(prefix, "  two words "...))
	if !ok || !written.Equal(now) || string(message) != "  two words " {
		t.Errorf("got %v, %q, %v", written, message, ok)
	}
	if _, message, ok = reader.SplitLine(prefix); !ok || len(message) != 0 {
		t.Errorf("an empty line: got %q, %v", message, ok)
	}
	for _, line := range []string{"", "x", "2026-11-21 00:08:34.292924624 one space", "2026-13-21 00:08:34.292924624  no such month"} {
		if _, message, ok := reader.SplitLine([]byte(line)); ok || string(message) != line {
			t.Errorf("%q: got %q, %v", line, message, ok)
		}
	}
}
