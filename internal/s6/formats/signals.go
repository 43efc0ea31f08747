package formats

import (
	"strconv"
	"strings"
)

// signals are the names of Linux's signals by number, without "SIG".
var signals = [...]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV",
	12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP", 20: "TSTP", 21: "TTIN",
	22: "TTOU", 23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH", 29: "IO", 30: "PWR", 31: "SYS",
}

// synonyms are names that are only read.
var synonyms = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

const lastSignal = 64

// SignalName returns the name of a signal as s6 prints it; without a name, "SIG" and the number. Signal 6 is always SIGABRT, for
// which newer versions of s6 print SIGIOT.
func SignalName(number int) string {
	if number > 0 && number < len(signals) {
		return "SIG" + signals[number]
	}
	return "SIG" + strconv.Itoa(number)
}

// ParseSignal reads a signal: a number, or a name in any case with or without "SIG".
func ParseSignal(text string) (number int, ok bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, n > 0 && n <= lastSignal
	}
	name := strings.ToUpper(text)
	name = strings.TrimPrefix(name, "SIG")
	if name == "" {
		return 0, false
	}
	for n, s := range signals {
		if s == name {
			return n, true
		}
	}
	number, ok = synonyms[name]
	return number, ok
}
