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

// lines cuts one stream into whole lines. An unfinished line at the end of a batch waits in carry.
type lines struct {
	room  *room  // for what carry takes above carrySpare
	max   int    // longest line that is kept in one piece, without its newline
	carry []byte // the beginning of a line; nil when there is none
	cont  bool   // carry, or the next byte, continues a line whose beginning was given out as a piece
}

// carrySpare is the capacity that each carry has in any case. A larger one isn't kept for reuse.
const carrySpare = 4 << 10

// feed takes the n new bytes at buf[l.max:] and returns the whole lines that are now there, each with its newline, or nil. The
// first l.max bytes of buf are room for the carry. The result is valid until the next call and may share buf.
func (l *lines) feed(buf []byte, n int) []byte {
	fresh := buf[l.max : l.max+n]
	last := bytes.LastIndexByte(fresh, '\n')
	if last < 0 && len(l.carry)+n <= l.max && l.fits(len(l.carry)+n) {
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
	if !l.cont && len(rest) <= l.max && !l.tooLong(whole) && l.fits(len(rest)) {
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

// fits makes carry large enough for n bytes, and reports whether it is.
func (l *lines) fits(n int) bool {
	l.carry = l.room.grow(l.carry, n, carrySpare, l.max)
	return n <= cap(l.carry)
}

// keep makes rest, which fits, the carry.
func (l *lines) keep(rest []byte) {
	if len(rest) == 0 || cap(l.carry) > carrySpare && len(rest) <= carrySpare {
		l.room.free(l.carry, carrySpare)
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
		line := l.pieces(&out, whole[:i], l.max)
		out = append(l.begin(out), line...)
		out = append(out, '\n')
		l.cont = false
		whole = whole[i+1:]
	}
	if rest = l.pieces(&out, rest, l.max); !l.fits(len(rest)) {
		rest = l.pieces(&out, rest, cap(l.carry))
	}
	l.keep(rest)
	return out
}

// pieces writes all of line but its last piece to out and returns that. No piece has more bytes than limit.
func (l *lines) pieces(out *[]byte, line []byte, limit int) []byte {
	for len(line) > limit {
		cut := limit
		for back := 0; back < utf8.UTFMax-1 && !utf8.RuneStart(line[cut]); back++ {
			cut--
		}
		if !utf8.RuneStart(line[cut]) {
			cut = limit // not UTF-8
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
