package formats_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/s6/formats"
)

func TestSvcReadsItsWordsAsS6(t *testing.T) {
	for words, want := range map[string]formats.Svc{
		"-u /run/service/gateway-coder": {Letters: "u", Dirs: []string{"/run/service/gateway-coder"}},
		"-du a":                         {Letters: "du", Dirs: []string{"a"}},
		"-d -u a b":                     {Letters: "du", Dirs: []string{"a", "b"}},
		"a":                             {Dirs: []string{"a"}},
		"a -d":                          {Dirs: []string{"a", "-d"}},
		"-wu -u a":                      {Letters: "u", Wait: 'u', Dirs: []string{"a"}},
		"-w D -T 1500 -d a":             {Letters: "d", Wait: 'D', Timeout: 1500 * time.Millisecond, Dirs: []string{"a"}},
		"-uwUT0 a":                      {}, // -w takes the rest of its word
		"-uwU -T0 a":                    {Letters: "u", Wait: 'U', Dirs: []string{"a"}},
		"-s TERM a":                     {Letters: "t", Dirs: []string{"a"}},
		"-s SIGUSR1 -s 12 a":            {Letters: "12", Dirs: []string{"a"}},
		"-skill a":                      {Letters: "k", Dirs: []string{"a"}},
		"-- -a":                         {Dirs: []string{"-a"}},
		"-" + formats.Letters + " a":    {Letters: formats.Letters, Dirs: []string{"a"}},
		"-s SEGV a":                     {},
		"-Z a":                          {},
		"-wq a":                         {},
		"-wuu a":                        {},
		"-T x a":                        {},
		"-T -1 a":                       {},
		"-u":                            {},
		"-u -T":                         {},
		"":                              {},
	} {
		got, ok := formats.ParseSvc(strings.Fields(words))
		if ok != (want.Dirs != nil) {
			t.Errorf("%q: accepted=%t", words, ok)
		}
		if !ok {
			continue
		}
		if got.Letters != want.Letters || got.Wait != want.Wait || got.Timeout != want.Timeout || !slices.Equal(got.Dirs, want.Dirs) {
			t.Errorf("%q: got %+v, want %+v", words, got, want)
		}
	}
}

func TestLettersSendTheSignalsOfTheContract(t *testing.T) {
	got := make(map[string]string)
	for _, letter := range []byte(formats.Letters) {
		if n, group := formats.SvcSignal(letter); n != 0 {
			name := formats.SignalName(n)
			if group {
				name += " to the group"
			}
			got[string(letter)] = name
		}
	}
	want := map[string]string{
		"t": "SIGTERM", "k": "SIGKILL", "h": "SIGHUP", "i": "SIGINT", "q": "SIGQUIT", "a": "SIGALRM", "b": "SIGABRT", "1": "SIGUSR1",
		"2": "SIGUSR2", "y": "SIGWINCH", "p": "SIGSTOP", "c": "SIGCONT",
		"P": "SIGSTOP to the group", "C": "SIGCONT to the group", "K": "SIGKILL to the group",
	}
	for letter, signal := range want {
		if got[letter] != signal {
			t.Errorf("-%s sends %q, want %q", letter, got[letter], signal)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d letters send a signal, want %d", len(got), len(want))
	}
}

func FuzzSvcWordsNeverHurt(f *testing.F) {
	f.Add("-wu\x00-T\x00100\x00-d\x00/run/service/a")
	f.Add("-s\x00SIGTERM\x00--\x00-x")
	f.Fuzz(func(t *testing.T, joined string) {
		c, ok := formats.ParseSvc(strings.Split(joined, "\x00"))
		if !ok {
			return
		}
		if len(c.Dirs) == 0 || c.Timeout < 0 {
			t.Fatalf("accepted %q as %+v", joined, c)
		}
		for _, letter := range c.Letters {
			if !strings.ContainsRune(formats.Letters, letter) {
				t.Fatalf("%q sends %q", joined, letter)
			}
		}
	})
}
