package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// setText sets the value at a schema pointer from one word of text and returns what is wrong with it.
func setText(at any, text string) string {
	switch at := at.(type) {
	case *string:
		*at = text
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return "expected a duration such as 30s"
		}
		*at = d
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return "expected true or false"
		}
		*at = b
	case *syscall.Signal:
		sig, ok := parseSignal(text)
		if !ok {
			return fmt.Sprintf("expected one of %s, got %q", strings.Join(signalNames(), ", "), text)
		}
		*at = sig
	default:
		return "it cannot be set by text"
	}
	return ""
}

// parseSignal reads the name of a stop signal, with or without SIG, in any case.
func parseSignal(name string) (syscall.Signal, bool) {
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	for _, s := range signals {
		if s.name == name {
			return s.sig, true
		}
	}
	return 0, false
}

// plain returns the value at a schema pointer as something that encoding/json writes the way hinit.yaml spells it.
func plain(at any) any {
	switch at := at.(type) {
	case *string:
		return *at
	case *bool:
		return *at
	case *int:
		return *at
	case *float64:
		return *at
	case *time.Duration:
		return formatDuration(*at)
	case *syscall.Signal:
		for _, s := range signals {
			if s.sig == *at {
				return s.name
			}
		}
		return strconv.Itoa(int(*at))
	case *[]string:
		return slices.Concat([]string{}, *at)
	case *[]int:
		return slices.Concat([]int{}, *at)
	default:
		return nil
	}
}

// plainLimit is plain for one resource limit.
func plainLimit(n uint64) any {
	if n == Unlimited {
		return "unlimited"
	}
	return n
}

// formatDuration writes whole seconds up to two minutes as seconds ("60s") and anything else as Go does, without the
// parts that are zero ("1h30m").
func formatDuration(d time.Duration) string {
	if d%time.Second == 0 && d > -2*time.Minute && d < 2*time.Minute {
		return strconv.Itoa(int(d/time.Second)) + "s"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
