package formats_test

import (
	"syscall"
	"testing"

	"hinit/internal/s6/formats"

	"golang.org/x/sys/unix"
)

func TestLettersSendTheSignalsOfTheContract(t *testing.T) {
	got := make(map[string]string)
	for _, letter := range []byte(formats.SvcLetters) {
		if n, group := formats.SvcSignal(letter); n != 0 {
			name := unix.SignalName(syscall.Signal(n))
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
