package logrotate

import (
	"path/filepath"
	"strings"
	"testing"

	"hinit/logrotate/archive"
)

// FuzzPump writes arbitrary bytes into the pipes of a service. The file must have every line once,
// complete and in order.
func FuzzPump(f *testing.F) {
	f.Add([]byte("one\ntwo\nthree"), []byte{3, 1, 9}, uint16(64))
	f.Add([]byte(strings.Repeat("x", 300)+"\n\n\n"), []byte{255, 0, 7}, uint16(100))
	f.Add([]byte("\xff\xfe\x00\r\n\xe2\x82"), []byte{1}, uint16(70))
	f.Add([]byte(strings.Repeat("ä€😀", 60)+"\nend\n"), []byte{2, 3, 5, 7}, uint16(65))
	f.Fuzz(func(t *testing.T, data, borders []byte, most uint16) {
		if strings.Contains(string(data), "[hinit: continued") || len(data) == 0 || len(data) > 32<<10 {
			t.Skip()
		}
		dir := t.TempDir()
		s := newSet(Options{limits: Limits{MaxSize: 4 << 10, Archives: 1000}, MaxLine: 64 + int(most)%1000, Console: Off})
		stdout, stderr := openPipes(t, s.Open("svc", "p", filepath.Join(dir, archive.CurrentFile)))
		rest := string(data)
		for i := 0; len(rest) > 0; i++ {
			n := len(rest)
			if len(borders) > 0 {
				n = min(n, 1+int(borders[i%len(borders)]))
			}
			writeText(t, stdout, rest[:n])
			rest = rest[n:]
		}
		closeAll(stdout, stderr)
		closeSet(t, s)
		want := string(data)
		if !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		var got strings.Builder
		for _, line := range storedLines(t, dir) {
			line = strings.TrimPrefix(line, SplitBegin)
			whole, continued := strings.CutSuffix(line, SplitEnd)
			got.WriteString(whole)
			if !continued {
				got.WriteByte('\n')
			}
		}
		if got.String() != want {
			t.Errorf("%q became %q", want, got.String())
		}
	})
}
