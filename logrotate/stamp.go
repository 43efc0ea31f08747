package logrotate

import "time"

const (
	secondLayout = "2006-01-02 15:04:05"
	stampLayout  = secondLayout + ".000000000"
	// stampLen is the length of everything before the line itself: the timestamp and two spaces.
	stampLen = len(stampLayout) + 2
)

// stamp makes line prefixes. The text of a second is made once; within it only the nanoseconds are written.
type stamp struct {
	second int64
	text   [stampLen]byte
}

// at returns the prefix of lines read at t.
func (s *stamp) at(t time.Time) [stampLen]byte {
	if sec := t.Unix(); sec != s.second || s.text[0] == 0 {
		s.second = sec
		t.Local().AppendFormat(s.text[:0], secondLayout)
		s.text[len(secondLayout)] = '.'
		s.text[stampLen-2], s.text[stampLen-1] = ' ', ' '
	}
	ns := t.Nanosecond()
	for i := len(stampLayout) - 1; i > len(secondLayout); i-- {
		s.text[i] = byte('0' + ns%10)
		ns /= 10
	}
	return s.text
}

// Split takes a line of a log file apart, as [Read] gives it: when it was read from the service, and what the service wrote.
// The time has no zone in the file, and is taken as local. A line that doesn't begin with a time is all message.
func Split(line []byte) (written time.Time, message []byte, ok bool) {
	if len(line) < stampLen || line[stampLen-2] != ' ' || line[stampLen-1] != ' ' {
		return time.Time{}, line, false
	}
	written, err := time.ParseInLocation(stampLayout, string(line[:stampLen-2]), time.Local)
	if err != nil {
		return time.Time{}, line, false
	}
	return written, line[stampLen:], true
}
