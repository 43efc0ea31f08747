package logrotate

import (
	"bytes"
	"unicode/utf8"
)

const (
	// SplitEnd ends every piece but the last of a line that was split because of its length.
	SplitEnd = " [hinit: continued below]"
	// SplitBegin begins every piece but the first of a line that was split.
	SplitBegin = "[hinit: continued] "
)

// lines cuts one stream into whole lines. What is left of a line at the end of a batch waits in carry.
type lines struct {
	max   int    // longest line that is kept in one piece, without its newline
	carry []byte // the beginning of a line; nil when there is none
	cont  bool   // carry, or the next byte, continues a line whose beginning was given out as a piece
}

// carrySpare is the capacity above which carry isn't kept for reuse.
const carrySpare = 4 << 10

// feed takes the n new bytes at buf[l.max:] and returns the whole lines that are now there, each with its newline, or nil. The
// first l.max bytes of buf are room for the carry. The result is valid until the next call and may share buf.
func (l *lines) feed(buf []byte, n int) []byte {
	fresh := buf[l.max : l.max+n]
	last := bytes.LastIndexByte(fresh, '\n')
	if last < 0 && len(l.carry)+n <= l.max {
		l.carry = append(l.carry, fresh...)
		return nil
	}
	start := l.max - len(l.carry)
	copy(buf[start:], l.carry)
	all := buf[start : l.max+n]
	cut := 0
	if last >= 0 {
		cut = len(l.carry) + last + 1
	}
	whole, rest := all[:cut], all[cut:]
	if !l.cont && len(rest) <= l.max && !l.tooLong(whole) {
		l.keep(rest)
		return whole
	}
	return l.split(whole, rest)
}

// end returns what is left at the end of the stream as a line, or nil. The stream may go on afterwards.
func (l *lines) end() []byte {
	if len(l.carry) == 0 {
		l.cont = false
		return nil
	}
	return l.split(append(l.carry, '\n'), nil)
}

func (l *lines) keep(rest []byte) {
	if len(rest) == 0 || cap(l.carry) > carrySpare && len(rest) <= carrySpare {
		l.carry = nil
	}
	if len(rest) > 0 {
		l.carry = append(l.carry[:0], rest...)
	}
}

// tooLong reports whether any line of whole is longer than max. It goes from one newline to the last one within reach.
func (l *lines) tooLong(whole []byte) bool {
	for len(whole) > l.max+1 {
		i := bytes.LastIndexByte(whole[:l.max+1], '\n')
		if i < 0 {
			return true
		}
		whole = whole[i+1:]
	}
	return false
}

// split is feed's slow path: it copies whole with marks where a line is too long, and takes from rest what is too long to wait.
func (l *lines) split(whole, rest []byte) []byte {
	out := make([]byte, 0, len(whole)+len(rest)+256)
	for len(whole) > 0 {
		i := bytes.IndexByte(whole, '\n')
		line := l.pieces(&out, whole[:i])
		out = append(l.begin(out), line...)
		out = append(out, '\n')
		l.cont = false
		whole = whole[i+1:]
	}
	l.keep(l.pieces(&out, rest))
	return out
}

// pieces writes all of line but its last piece to out and returns that.
func (l *lines) pieces(out *[]byte, line []byte) []byte {
	for len(line) > l.max {
		cut := l.max
		for back := 0; back < utf8.UTFMax-1 && !utf8.RuneStart(line[cut]); back++ {
			cut--
		}
		if !utf8.RuneStart(line[cut]) {
			cut = l.max // not UTF-8
		}
		*out = append(l.begin(*out), line[:cut]...)
		*out = append(*out, SplitEnd+"\n"...)
		l.cont = true
		line = line[cut:]
	}
	return line
}

func (l *lines) begin(out []byte) []byte {
	if l.cont {
		out = append(out, SplitBegin...)
	}
	return out
}
