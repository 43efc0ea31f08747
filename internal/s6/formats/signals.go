package formats

import (
	"cmp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// synonyms are further names that ParseSignal accepts.
var synonyms = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

const lastSignal = 64

// SignalName returns the name of a signal as s6 prints it, or "SIG" and the number if it has none. Signal 6 is always SIGABRT;
// newer versions of s6 print SIGIOT.
func SignalName(number int) string {
	return cmp.Or(unix.SignalName(syscall.Signal(number)), "SIG"+strconv.Itoa(number))
}

// ParseSignal parses a signal: a number, or a name with or without "SIG", in any case.
func ParseSignal(text string) (number int, ok bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, n > 0 && n <= lastSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	number = cmp.Or(int(unix.SignalNum("SIG"+name)), synonyms[name])
	return number, number != 0
}
