package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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
	case *string, *bool, *int, *float64:
		return reflect.ValueOf(at).Elem().Interface()
	case *Switch:
		if *at == Auto {
			return string(Auto)
		}
		return *at == On
	case *time.Duration:
		return formatDuration(*at)
	case *syscall.Signal:
		for _, s := range signals {
			if s.sig == *at {
				return s.name
			}
		}
		return strconv.Itoa(int(*at))
	case *Bytes:
		return at.text()
	case *Paths:
		return append([]string{}, *at...)
	case *[]string:
		return append([]string{}, *at...)
	case *[]int:
		return append([]int{}, *at...)
	case *[]Need:
		return plainNeeds(*at)
	default:
		return nil
	}
}

// plainLimit is plain for one resource limit.
func plainLimit(l ResourceLimit) any {
	if l.Soft != l.Hard {
		return fmt.Sprintf("%v:%v", plainLimit(ResourceLimit{l.Soft, l.Soft}), plainLimit(ResourceLimit{l.Hard, l.Hard}))
	}
	if l.Soft == Unlimited {
		return "unlimited"
	}
	return l.Soft
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
