package formats

import (
	"time"
)

const (
	labelDigits = 24
	// labelSize is the length of a TAI64N label.
	labelSize = 1 + labelDigits
	// taiOffset is a label's lead on Unix time before the first leap second: 2^62, and TAI's lead of 10 seconds on UTC then.
	taiOffset = 1<<62 + 10

	hexDigits = "0123456789abcdef"
)

// leaps are the Unix times right after each leap second, 1972 to 2017. TAI counts them and Unix time doesn't.
var leaps = [...]int64{
	78796800, 94694400, 126230400, 157766400, 189302400, 220924800, 252460800, 283996800, 315532800,
	362793600, 394329600, 425865600, 489024000, 567993600, 631152000, 662688000, 709948800, 741484800,
	773020800, 820454400, 867715200, 915148800, 1136073600, 1230768000, 1341100800, 1435708800, 1483228800,
}

func leapsAt(unix int64) int64 {
	n := len(leaps)
	for n > 0 && unix < leaps[n-1] {
		n--
	}
	return int64(n)
}

// leapsIn counts the leap seconds up to a time that counts them itself.
func leapsIn(counted int64) int64 {
	n := int64(len(leaps))
	for n > 0 && counted < leaps[n-1]+n {
		n--
	}
	return n
}

// AppendTAI64N appends the label of a time: "@", 16 hexadecimal digits of seconds, 8 of nanoseconds.
func AppendTAI64N(b []byte, t time.Time) []byte {
	b = append(b, '@')
	unix := t.Unix()
	b = appendHex(b, uint64(unix+leapsAt(unix))+taiOffset, 16)
	return appendHex(b, uint64(t.Nanosecond()), 8)
}

// TAI64N returns the label of a time; see [AppendTAI64N].
func TAI64N(t time.Time) string { return string(AppendTAI64N(make([]byte, 0, labelSize), t)) }

// ParseTAI64N reads the label at the beginning of text and returns its local time and the rest of the text. It returns false
// without a label, or for a time before 1970.
func ParseTAI64N[T string | []byte](text T) (t time.Time, rest T, ok bool) {
	if len(text) < labelSize || text[0] != '@' {
		return t, text, false
	}
	seconds, ok := parseHex(text[1:17])
	nanos, ok2 := parseHex(text[17:labelSize])
	if ok = ok && ok2; ok {
		t, ok = timeOfTAI(seconds, nanos)
	}
	if !ok {
		return t, text, false
	}
	return t, text[labelSize:], true
}

func timeOfTAI(seconds, nanos uint64) (t time.Time, ok bool) {
	if seconds < taiOffset || seconds >= 1<<63 || nanos > 999_999_999 {
		return t, false
	}
	counted := int64(seconds - taiOffset)
	return time.Unix(counted-leapsIn(counted), int64(nanos)), true
}

// AppendLocalTime appends the time as s6 prints it: date and time with a space between, nine digits of fraction, the zone of t and
// no name for it.
func AppendLocalTime(b []byte, t time.Time) []byte {
	return t.AppendFormat(b, "2006-01-02 15:04:05.000000000")
}

func appendHex(b []byte, v uint64, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		b = append(b, hexDigits[v>>shift&15])
	}
	return b
}

func parseHex[T string | []byte](text T) (v uint64, ok bool) {
	for i := range len(text) {
		c := text[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		v = v<<4 | uint64(c)
	}
	return v, true
}
