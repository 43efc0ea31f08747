package logrotate

import "bytes"

// tailLine is the maximum number of bytes of each line that are kept for [Log.Tail].
const tailLine = 500

// lastLines is a ring buffer of the last lines of a run. It reuses the memory of its slots.
type lastLines struct {
	slots [][]byte
	next  int
}

// add stores the last lines of chunk, which ends with a newline, and drops the oldest lines if there are more than the parameter
// limit.
func (t *lastLines) add(chunk []byte, limit int) {
	if limit <= 0 {
		return
	}
	start := len(chunk) - 1 // beginning of the first line to keep; the search runs backward from the end
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

func (t *lastLines) addLine(line []byte, limit int) {
	line = line[:min(len(line), tailLine)]
	if len(t.slots) < limit {
		t.slots = append(t.slots, bytes.Clone(line))
		return
	}
	t.slots[t.next] = append(t.slots[t.next][:0], line...)
	t.next = (t.next + 1) % limit
}

// lines returns the kept lines, oldest first.
func (t *lastLines) lines() []string {
	out := make([]string, 0, len(t.slots))
	for i := range t.slots {
		out = append(out, string(t.slots[(t.next+i)%len(t.slots)]))
	}
	return out
}
