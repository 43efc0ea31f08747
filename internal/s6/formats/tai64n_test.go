package formats_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/s6/formats"

	"golang.org/x/sys/unix"
)

func TestLabelsAreThoseOfS6(t *testing.T) {
	const label = "@400000006b00e1dd1213c744"
	got, rest, ok := formats.ParseTAI64N(label + " line")
	if !ok || rest != " line" || got.Unix() != 0x6b00e1dd-37 || got.Nanosecond() != 0x1213c744 {
		t.Errorf("%s is %v, %q, %t", label, got, rest, ok)
	}
	if again := formats.TAI64N(got); again != label {
		t.Errorf("%s is written as %s", label, again)
	}
	if text := got.UTC().Format(time.DateTime); text != "2026-11-21 00:11:36" {
		t.Errorf("%s is %s", label, text)
	}
	for _, bad := range []string{"", "@", "400000006b00e1dd1213c744", "@400000006b00e1dd1213c74", "@400000006b00e1dd1213c74x", "@3fffffffffffffff00000000", "@400000006b00e1ddffffffff", "@ffffffffffffffff00000000"} {
		if _, rest, ok := formats.ParseTAI64N(bad); ok || rest != bad {
			t.Errorf("%q is taken for a label", bad)
		}
	}
	upper, _, ok := formats.ParseTAI64N([]byte(strings.ToUpper(label)))
	if !ok || !upper.Equal(got) {
		t.Errorf("uppercase digits: %v, %t", upper, ok)
	}
}

func FuzzLabelsKeepTheirTime(f *testing.F) {
	f.Add(int64(1_795_219_891), int64(303_286_084))
	f.Add(int64(0), int64(0))
	f.Fuzz(func(t *testing.T, seconds, nanos int64) {
		when := time.Unix(seconds&(1<<40-1), nanos&(1<<29-1))
		got, rest, ok := formats.ParseTAI64N(formats.TAI64N(when) + "x")
		if !ok || rest != "x" || !got.Equal(when) {
			t.Fatalf("%v is written as %s and read as %v", when, formats.TAI64N(when), got)
		}
	})
}

func TestSignalsHaveTheirNames(t *testing.T) {
	for text, want := range map[string]int{
		"TERM": 15, "SIGTERM": 15, "sigterm": 15, "15": 15, "IOT": 6, "ABRT": 6, "SIGCLD": 17, "64": 64, "SIGWINCH": 28,
		"": 0, "0": 0, "65": 0, "-1": 0, "SIG": 0, "NOPE": 0, "SIGSIGTERM": 0,
	} {
		if got, ok := formats.ParseSignal(text); ok != (want > 0) || ok && got != want {
			t.Errorf("ParseSignal(%q) = %d, %t", text, got, ok)
		}
	}
	for n := 1; n < 32; n++ {
		name := unix.SignalName(syscall.Signal(n))
		if got, ok := formats.ParseSignal(name); !ok || got != n {
			t.Errorf("%s is read as %d", name, got)
		}
	}
}
