package logrotate

import (
	"bytes"
	"unicode/utf8"
)

const (
	// SplitEnd is added to the end of each piece of a line longer than Options.MaxLine, except the last piece.
	SplitEnd = " [hinit: continued below]"
	// SplitBegin is added to the beginning of each piece of such a line, except the first piece.
	SplitBegin = "[hinit: continued] "
)

// lineSplitter divides the bytes of one stream into complete lines. An unfinished line waits in the field unfinished for its
// rest.
type lineSplitter struct {
	budget     *bufferBudget // Budget shared with other streams, for the part of unfinished above unfinishedOutsideBudget.
	maxLine    int           // Longest line that is not split, without its newline.
	unfinished []byte        // Unfinished line; nil for none.
	continued  bool          // Whether the next byte continues a long line whose first pieces were returned.
}

// unfinishedOutsideBudget is the number of bytes of an unfinished line that don't count against the shared budget. A larger
// buffer is freed as soon as its line is complete.
const unfinishedOutsideBudget = 4 << 10

// feed takes n new bytes, which the caller has read into buf[l.max:]. It returns the lines that are now complete, with their
// newlines, or nil. The first l.max bytes of buf must be free: feed puts the unfinished line of the last call there, in front
// of the new bytes. So the result may share memory with buf; it is valid until the next call.
func (l *lineSplitter) feed(buf []byte, n int) []byte {
	fresh := buf[l.maxLine : l.maxLine+n]
	if bytes.IndexByte(fresh, '\n') < 0 && len(l.unfinished)+n <= l.maxLine && l.growUnfinished(len(l.unfinished)+n) {
		l.unfinished = append(l.unfinished, fresh...)
		return nil
	}
	start := l.maxLine - len(l.unfinished)
	copy(buf[start:], l.unfinished)
	all := buf[start : l.maxLine+n]
	cut := bytes.LastIndexByte(all, '\n') + 1 // Without a newline, cut is 0.
	whole, rest := all[:cut], all[cut:]
	if !l.continued && len(rest) <= l.maxLine && !l.tooLong(whole) && l.growUnfinished(len(rest)) {
		l.keepUnfinished(rest)
		return whole
	}
	return l.split(whole, rest)
}

// takeUnfinished returns the unfinished line with a newline added, or nil if no line is unfinished. Call it at the end of a
// pipe. Any input after the call begins a new line.
func (l *lineSplitter) takeUnfinished() []byte {
	if len(l.unfinished) == 0 {
		l.continued = false
		return nil
	}
	return l.split(append(l.unfinished, '\n'), nil)
}

// growUnfinished makes room for n bytes in the buffer of the unfinished line, if the budget allows it. It reports whether
// there is room.
func (l *lineSplitter) growUnfinished(n int) bool {
	l.unfinished = l.budget.grow(l.unfinished, n, unfinishedOutsideBudget, l.maxLine)
	return n <= cap(l.unfinished)
}

// keepUnfinished makes rest the unfinished line. The caller has made room for it with growUnfinished.
func (l *lineSplitter) keepUnfinished(rest []byte) {
	if len(rest) == 0 || cap(l.unfinished) > unfinishedOutsideBudget && len(rest) <= unfinishedOutsideBudget {
		l.budget.free(l.unfinished, unfinishedOutsideBudget)
		l.unfinished = nil
	}
	if len(rest) > 0 {
		l.unfinished = append(l.unfinished[:0], rest...)
	}
}

// tooLong reports whether any line in whole is longer than maxLine. It searches newlines backwards in steps of maxLine bytes, so
// it doesn't look at every line.
func (l *lineSplitter) tooLong(whole []byte) bool {
	for len(whole) > l.maxLine+1 {
		i := bytes.LastIndexByte(whole[:l.maxLine+1], '\n')
		if i < 0 {
			return true
		}
		whole = whole[i+1:]
	}
	return false
}

// split is feed for lines that are too long. It returns a copy of whole in which each such line is split into marked pieces.
// If the unfinished line rest doesn't fit into its buffer, split also returns the first pieces of rest.
func (l *lineSplitter) split(whole, rest []byte) []byte {
	out := make([]byte, 0, len(whole)+len(rest)+256)
	for len(whole) > 0 {
		i := bytes.IndexByte(whole, '\n')
		line := l.splitLong(&out, whole[:i], l.maxLine)
		out = append(append(l.appendSplitBegin(out), line...), '\n')
		l.continued = false
		whole = whole[i+1:]
	}
	rest = l.splitLong(&out, rest, l.maxLine)
	if !l.growUnfinished(len(rest)) {
		rest = l.splitLong(&out, rest, cap(l.unfinished))
	}
	l.keepUnfinished(rest)
	return out
}

// splitLong appends all pieces of line but the last to out, and returns the last piece. A piece has at most limit bytes.
func (l *lineSplitter) splitLong(out *[]byte, line []byte, limit int) []byte {
	for len(line) > limit {
		cut := limit
		for back := 0; back < utf8.UTFMax-1 && !utf8.RuneStart(line[cut]); back++ {
			cut--
		}
		if !utf8.RuneStart(line[cut]) {
			cut = limit // The bytes are not UTF-8, so cut anywhere.
		}
		*out = append(l.appendSplitBegin(*out), line[:cut]...)
		*out = append(*out, SplitEnd+"\n"...)
		l.continued = true
		line = line[cut:]
	}
	return line
}

func (l *lineSplitter) appendSplitBegin(out []byte) []byte {
	if l.continued {
		out = append(out, SplitBegin...)
	}
	return out
}

// maxTailLine is the maximum number of bytes of each line that are kept for [Log.Tail].
const maxTailLine = 500

// tailBuffer is a ring buffer of the last lines of a run. A new line reuses the memory of the line that it replaces.
type tailBuffer struct {
	slots    [][]byte
	nextSlot int
}

// add stores the lines of chunk, which ends with a newline. It keeps only the last limit lines.
func (t *tailBuffer) add(chunk []byte, limit int) {
	if limit <= 0 {
		return
	}
	start := len(chunk) - 1 // Beginning of the first line to keep; the search runs backward from the end.
	for range limit {
		start = bytes.LastIndexByte(chunk[:start], '\n')
		if start < 0 {
			break
		}
	}
	for rest := chunk[start+1:]; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		t.addLine(rest[:i], limit)
		rest = rest[i+1:]
	}
}

func (t *tailBuffer) addLine(line []byte, limit int) {
	line = line[:min(len(line), maxTailLine)]
	if len(t.slots) < limit {
		t.slots = append(t.slots, bytes.Clone(line))
		return
	}
	t.slots[t.nextSlot] = append(t.slots[t.nextSlot][:0], line...)
	t.nextSlot = (t.nextSlot + 1) % limit
}

// lines returns the kept lines, oldest first.
func (t *tailBuffer) lines() []string {
	out := make([]string, 0, len(t.slots))
	for i := range t.slots {
		out = append(out, string(t.slots[(t.nextSlot+i)%len(t.slots)]))
	}
	return out
}
