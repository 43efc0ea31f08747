package dotenv_test

import (
	"testing"

	"hinit/internal/dotenv"
)

func TestParse(t *testing.T) {
	const text = "# a comment\nA=1\nexport B = two words # and why\nC=\"a\\n#b\"\nD='a\\n'\nE=\"first\nsecond\"\nno variable\nF=\nG=\"open\nH=a#b\r\n"
	want := []struct{ name, value string }{
		{"A", "1"}, {"B", "two words"}, {"C", "a\n#b"}, {"D", `a\n`}, {"E", "first\nsecond"}, {"F", ""}, {"G", "open"}, {"H", "a#b"},
	}
	got := dotenv.Parse(text)
	if len(got) != len(want) {
		t.Fatalf("it has %d variables: %+v", len(got), got)
	}
	for i, w := range want {
		if got[i].Name != w.name || got[i].Value() != w.value {
			t.Errorf("variable %d is %q=%q, not %q=%q", i, got[i].Name, got[i].Value(), w.name, w.value)
		}
	}
}
