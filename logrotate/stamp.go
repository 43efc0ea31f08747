package logrotate

import (
	"time"

	"hinit/logrotate/archive"
)

const stampLen = archive.StampLen

// stamp formats the timestamps of lines. It formats date and time once per second, and the nanoseconds for each batch of lines.
type stamp struct {
	second int64
	text   [stampLen]byte
}

// format returns the timestamp of lines that were read at time t.
func (s *stamp) format(t time.Time) [stampLen]byte {
	if sec := t.Unix(); sec != s.second || s.text[0] == 0 {
		s.second = sec
		t.Local().AppendFormat(s.text[:0], time.DateTime)
		s.text[len(time.DateTime)] = '.'
		s.text[stampLen-2], s.text[stampLen-1] = ' ', ' '
	}
	ns := t.Nanosecond()
	for i := len(archive.StampLayout) - 1; i > len(time.DateTime); i-- {
		s.text[i] = byte('0' + ns%10)
		ns /= 10
	}
	return s.text
}
