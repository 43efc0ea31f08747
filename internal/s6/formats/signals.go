package formats

import (
	"cmp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// synonyms maps additional names that ParseSignal accepts to signals.
var synonyms = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29}

const lastSignal = 64

// ParseSignal parses a signal: a number, or a name with or without "SIG", in any case.
func ParseSignal(text string) (number int, ok bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, n > 0 && n <= lastSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	number = cmp.Or(int(unix.SignalNum("SIG"+name)), synonyms[name])
	return number, number != 0
}
