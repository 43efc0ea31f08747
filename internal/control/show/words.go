package show

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// Signal is the name of a signal.
func Signal(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

// Duration writes a duration with one or two units: 3.2s, 4m10s, 2h5m, 3d4h.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// Seconds is Duration for a number of seconds.
func Seconds(s float64) string { return Duration(time.Duration(s * float64(time.Second))) }

// Number writes a number, "-" for 0.
func Number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// Timeline is the boot in one line: "0.153s (control 1ms, home 0ms, ...)".
func Timeline(steps []client.BootStep) string {
	total := 0.0
	parts := make([]string, len(steps))
	for i, s := range steps {
		total += s.Seconds
		parts[i] = fmt.Sprintf("%s %dms", s.Name, int(s.Seconds*1000))
		if s.Error != "" {
			parts[i] += " FAILED"
		}
	}
	return fmt.Sprintf("%.3fs (%s)", total, strings.Join(parts, ", "))
}

// LastExit says how a service ended last and when: "code 1 (crash), 3.2s ago".
func LastExit(x *client.Exit) string {
	if x == nil {
		return "-"
	}
	ago := Duration(time.Since(x.At)) + " ago"
	switch {
	case x.Cause == "spawn":
		line, _, _ := strings.Cut(x.Error, "\n")
		return line + ", " + ago
	case x.Signal != nil:
		return fmt.Sprintf("%s (%s), %s", Signal(*x.Signal), x.Cause, ago)
	case x.Code != nil:
		return fmt.Sprintf("code %d (%s), %s", *x.Code, x.Cause, ago)
	}
	return x.Cause + ", " + ago
}

// Outcome is what `hinit start`, stop and restart print of a service that has got there.
func Outcome(s client.Service) string {
	if s.PID != 0 {
		return fmt.Sprintf("%s is %s (pid %d)", s.Name, s.State, s.PID)
	}
	return fmt.Sprintf("%s is %s", s.Name, s.State)
}
