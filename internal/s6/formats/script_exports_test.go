package formats_test

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"hinit/internal/s6/formats"
)

func TestExports(t *testing.T) {
	tests := []struct {
		script  string
		set     map[string]string
		unclear []string
	}{
		{"", nil, nil},
		{"#!/command/with-contenv sh\nset -e\nexport HOME=/opt/data\ncd /opt/data\nexport A='it'\"'\"'s $5'\nexec true\n", map[string]string{"HOME": "/opt/data", "A": "it's $5"}, nil},
		{"export A='two\nlines' B=\"x\\\"y\\z\"\nexport\tC=a\\ b;true", map[string]string{"A": "two\nlines", "B": `x"y\z`, "C": "a b"}, nil},
		{"export A= B='' C=x'y'\"z\" # D=no\n", map[string]string{"A": "", "B": "", "C": "xyz"}, nil},
		{"export A=1\nexport A=$HOME\nexport B=`id` C=2\nexport D=~/x E=1\nexport F=* \nexport G=\"$G\"\n", nil, []string{"A", "B", "D", "F", "G"}},
		{"export A=$X\nexport A=1", map[string]string{"A": "1"}, nil},
		{"  export A=1\nif true; then\n\texport B=1\nfi\nexported=1\nexport 1A=2\nexport A\nexport -p\nexport", nil, nil},
		{"export A=1\nexec true\nexport B=2\n", map[string]string{"A": "1"}, nil},
		{"executable=1\nexport A=1 && export B=2\n", map[string]string{"A": "1"}, nil},
		{"export A='open\nexport B=1\n", map[string]string{"B": "1"}, []string{"A"}},
		{"export ÄÖ=1 A=ä\n", nil, nil},
		{"export A='a\x00b'\nexport B=1\n", map[string]string{"B": "1"}, []string{"A"}},
	}
	for _, tt := range tests {
		set, unclear := formats.Exports([]byte(tt.script))
		if !maps.Equal(set, tt.set) || !slices.Equal(unclear, tt.unclear) {
			t.Errorf("%q exports %q, unclear %q; want %q and %q", tt.script, set, unclear, tt.set, tt.unclear)
		}
	}
}

// FuzzExports checks that a script of exports means the same to hinit and to a real shell. It skips lines that the shell
// refuses or that do more than export.
func FuzzExports(f *testing.F) {
	for _, word := range []string{"/opt/data", "'a b'", `"it's"`, `a\ b`, `'it'"'"'s'`, "$HOME", "~", "a*", `"a\
b"`, "x;y", "a#b", "a=b", "ä", "{a,b}", "\x01"} {
		f.Add(word)
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		f.Skip("there is no shell")
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, word string) {
		if strings.ContainsAny(word, "\x00\r") || strings.Contains(word, "\n") && !strings.HasPrefix(word, "'") {
			return
		}
		set, _ := formats.Exports([]byte("export WORD=" + word + "\n"))
		value, understood := set["WORD"]
		if !understood || len(set) > 1 || strings.ContainsAny(word, ";&|") {
			return
		}
		// Only literal words and redirections remain, so the shell executes nothing.
		cmd := exec.Command(shell, "-c", "export WORD="+word+"\nprintf '%sx' \"$WORD\"")
		cmd.Env, cmd.Dir = []string{}, dir
		out, err := cmd.Output()
		if err != nil {
			return
		}
		if string(out) != value+"x" {
			t.Errorf("%q is %q to the shell, %q to Exports", word, out, value)
		}
	})
}
