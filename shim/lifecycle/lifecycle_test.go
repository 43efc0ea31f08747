package lifecycle

import (
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	f.Add("-p\x00coder\x00gateway\x00start")
	f.Add("gateway\x00restart\x00--profile=coder\x00--all")
	f.Fuzz(func(t *testing.T, joined string) {
		words := strings.Split(joined, "\x00")
		l, ok := Parse(words)
		if !ok {
			if l != (Command{}) {
				t.Fatalf("%q: %+v is returned though it is not known", words, l)
			}
			return
		}
		count := 2
		if l.All {
			count++
		}
		if n := len(words); n < count || n > count+2 || l.All && l.Verb != "stop" && l.Verb != "restart" {
			t.Fatalf("%q is taken for %+v", words, l)
		}
	})
}
