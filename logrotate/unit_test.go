package logrotate

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestStamp(t *testing.T) {
	base := time.Date(2026, 11, 21, 0, 8, 34, 0, time.Local)
	for _, d := range []time.Duration{0, 1, 292924624, 999999999, time.Second, -time.Hour, 0, 24 * time.Hour} {
		at := base.Add(d)
		got := appendStamp(nil, at)
		if want := at.Format("2006-01-02 15:04:05.000000000") + "  "; string(got) != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestStampFollowsTimeZone(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Skip("no time zone data here")
	}
	old := time.Local
	time.Local = zone
	defer func() { time.Local = old }()
	got := appendStamp(nil, time.Date(2026, 11, 21, 0, 11, 42, 605472464, time.UTC))
	if want := "2026-11-20 19:11:42.605472464  "; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// splitAll feeds input to a line cutter in pieces and returns the whole output.
func splitAll(input []byte, limit int, piece func() int) []byte {
	l := lineSplitter{budget: new(bufferBudget), maxLine: limit}
	buf := make([]byte, limit+readSize)
	var out []byte
	for len(input) > 0 {
		n := copy(buf[limit:], input[:min(piece(), len(input), readSize)])
		out = append(out, l.feed(buf, n)...)
		input = input[n:]
	}
	return append(out, l.takeUnfinished()...)
}

// joinSplitLines removes the marks of split lines.
func joinSplitLines(out []byte) []byte {
	return bytes.ReplaceAll(out, []byte(SplitEnd+"\n"+SplitBegin), nil)
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\n\nbcd\nlast"), uint64(1), uint8(0))
	f.Add(bytes.Repeat([]byte("é"), 700), uint64(2), uint8(3))
	f.Add([]byte(strings.Repeat("x", 256)+"\n"+strings.Repeat("y", 257)+"\n"), uint64(3), uint8(255))
	f.Fuzz(func(t *testing.T, input []byte, seed uint64, largest uint8) {
		if bytes.Contains(input, []byte("[hinit")) {
			return
		}
		const limit = 256
		rnd := rand.New(rand.NewPCG(seed, 0))
		out := splitAll(input, limit, func() int { return 1 + rnd.IntN(int(largest)*4+1) })
		want := bytes.Clone(input)
		if len(want) > 0 && want[len(want)-1] != '\n' {
			want = append(want, '\n')
		}
		if got := joinSplitLines(out); !bytes.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		for line := range bytes.Lines(out) {
			if line[len(line)-1] != '\n' {
				t.Fatalf("not whole: %q", line)
			}
			if n := len(line) - 1; n > limit+len(SplitBegin)+len(SplitEnd) {
				t.Fatalf("a piece of %d bytes", n)
			}
			if utf8.Valid(input) && !utf8.Valid(line) {
				t.Fatalf("cut within a character: %q", line)
			}
		}
	})
}

func TestLinesSplitOnlyWhatIsTooLong(t *testing.T) {
	exact, over := strings.Repeat("e", 256), strings.Repeat("o", 513)
	for _, size := range []int{1, 7, 255, 256, 257, 4096} {
		got := string(splitAll([]byte(exact+"\n"+over+"\nend\n"), 256, func() int { return size }))
		want := exact + "\n" + over[:256] + SplitEnd + "\n" + SplitBegin + over[:256] + SplitEnd + "\n" + SplitBegin + "o\nend\n"
		if got != want {
			t.Errorf("pieces of %d: got %q", size, got)
		}
	}
}

func TestLinesKeepNoEmptyCarry(t *testing.T) {
	l := lineSplitter{budget: new(bufferBudget), maxLine: 256}
	buf := make([]byte, 256+readSize)
	for _, text := range []string{"begin", " end\n"} {
		l.feed(buf, copy(buf[256:], text))
	}
	if l.unfinished != nil {
		t.Errorf("carry of capacity %d is kept", cap(l.unfinished))
	}
}

func TestTailRing(t *testing.T) {
	var tl tailBuffer
	var all []string
	for i := range 50 {
		var chunk strings.Builder
		for j := range i % 7 {
			line := strings.Repeat(string(rune('a'+j)), i*20)
			chunk.WriteString(line + "\n")
			all = append(all, line[:min(len(line), maxTailLine)])
		}
		if chunk.Len() > 0 {
			tl.add([]byte(chunk.String()), 4)
		}
		checkLines(t, tl.lines(), all[max(0, len(all)-4):]...)
	}
}

func TestAppendJSON(t *testing.T) {
	for _, in := range []string{
		"", "plain", `"quoted" \ back`, "tab\tcr\rnul\x00esc\x1b[0m", "⚕ Hermes é 😀", "cut \xf0\x9f\x98", "\xff\xfe",
		"<&>",
	} {
		var got string
		if err := json.Unmarshal(appendJSON(nil, in), &got); err != nil {
			t.Errorf("%q: %v", in, err)
		}
		if want := string([]rune(in)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
