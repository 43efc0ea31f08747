package nearest

import "testing"

func TestTheWordThatWasMeant(t *testing.T) {
	for _, tt := range []struct {
		word string
		from []string
		want string
	}{
		{"inital", []string{"max", "initial"}, "initial"},
		{"grcae", []string{"grace"}, "grace"},
		{"x", []string{"home"}, ""},
		{"completely", []string{"different"}, ""},
		{"", []string{"ab"}, "ab"},
		{"max", []string{"mix", "max"}, "max"},
		{"mox", []string{"mix", "max"}, "mix"},
	} {
		if got := Word(tt.word, tt.from); got != tt.want {
			t.Errorf("Word(%q, %q) = %q, want %q", tt.word, tt.from, got, tt.want)
		}
	}
}
