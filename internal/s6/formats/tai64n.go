package formats

import (
	"encoding/binary"
	"encoding/hex"
	"time"
)

const (
	// binaryLabelSize is the length of a label in binary form, as s6 stores it: 8 bytes of seconds and 4 bytes of nanoseconds.
	binaryLabelSize = 12
	// textLabelSize is the length of a label as text: "@" and the same bytes in hexadecimal digits.
	textLabelSize = 1 + 2*binaryLabelSize
	// taiOffset is the difference between the seconds in a label and Unix time before the first leap second. It is 2^62 plus 10,
	// because TAI was then 10 seconds ahead of UTC.
	taiOffset = 1<<62 + 10
)

// leapSeconds has the Unix times just after each leap second from 1972 to 2017. TAI counts leap seconds, and Unix time doesn't.
var leapSeconds = [...]int64{
	78796800, 94694400, 126230400, 157766400, 189302400, 220924800, 252460800, 283996800, 315532800,
	362793600, 394329600, 425865600, 489024000, 567993600, 631152000, 662688000, 709948800, 741484800,
	773020800, 820454400, 867715200, 915148800, 1136073600, 1230768000, 1341100800, 1435708800, 1483228800,
}

// leapSecondsBefore returns the number of leap seconds before the time seconds. Pass each = 1 if seconds is TAI, which counts
// leap seconds, and 0 if it is Unix time.
func leapSecondsBefore(seconds, each int64) int64 {
	n := int64(len(leapSeconds))
	for n > 0 && seconds < leapSeconds[n-1]+n*each {
		n--
	}
	return n
}

// AppendTAI64N appends the label of t: "@", 16 hexadecimal digits of seconds, and 8 of nanoseconds.
func AppendTAI64N(b []byte, t time.Time) []byte {
	return hex.AppendEncode(append(b, '@'), appendBinaryLabel(make([]byte, 0, binaryLabelSize), t))
}

func appendBinaryLabel(b []byte, t time.Time) []byte {
	unix := t.Unix()
	b = binary.BigEndian.AppendUint64(b, uint64(unix+leapSecondsBefore(unix, 0))+taiOffset)
	return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

// TAI64N returns the label of t, see [AppendTAI64N].
func TAI64N(t time.Time) string { return string(AppendTAI64N(make([]byte, 0, textLabelSize), t)) }

// ParseTAI64N parses a label at the beginning of text. It returns the label's time in the local time zone, and the text after the
// label. If text has no label, or its time is before 1970, ok is false.
func ParseTAI64N[T string | []byte](text T) (t time.Time, rest T, ok bool) {
	if len(text) < textLabelSize || text[0] != '@' {
		return t, text, false
	}
	label := make([]byte, binaryLabelSize)
	if _, err := hex.Decode(label, []byte(text[1:textLabelSize])); err == nil {
		t, ok = parseBinaryLabel(label)
	}
	if !ok {
		return t, text, false
	}
	return t, text[textLabelSize:], true
}

func parseBinaryLabel(label []byte) (t time.Time, ok bool) {
	seconds, nanos := binary.BigEndian.Uint64(label), binary.BigEndian.Uint32(label[8:])
	if seconds < taiOffset || seconds >= 1<<63 || nanos > 999_999_999 {
		return t, false
	}
	counted := int64(seconds - taiOffset)
	return time.Unix(counted-leapSecondsBefore(counted, 1), int64(nanos)), true
}
