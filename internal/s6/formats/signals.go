package formats

import (
	"cmp"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// synonyms are names that are only read.
var synonyms = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

const lastSignal = 64

// SignalName returns the name of a signal as s6 prints it; without a name, "SIG" and the number. Signal 6 is always SIGABRT, for
// which newer versions of s6 print SIGIOT.
func SignalName(number int) string {
	return cmp.Or(unix.SignalName(syscall.Signal(number)), "SIG"+strconv.Itoa(number))
}

// ParseSignal reads a signal: a number, or a name in any case with or without "SIG".
func ParseSignal(text string) (number int, ok bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, n > 0 && n <= lastSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	number = cmp.Or(int(unix.SignalNum("SIG"+name)), synonyms[name])
	return number, number != 0
}
