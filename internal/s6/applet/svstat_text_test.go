package applet

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/s6/formats"
)

var now = time.Date(2026, 11, 21, 0, 0, 30, 500_000_000, time.UTC)

func nowMinus(d time.Duration) time.Time { return now.Add(-d) }

func TestLineIsTheOneOfS6(t *testing.T) {
	two := 2*time.Second + 300*time.Millisecond
	down := client.Slot{EverStarted: true, NormallyUp: true, Since: nowMinus(two), ReadySince: nowMinus(two)}
	with := func(s client.Slot, change func(*client.Slot)) client.Slot { change(&s); return s }
	up := client.Slot{Up: true, WantUp: true, NormallyUp: true, EverStarted: true, PID: 31604, PGID: 31604, ExitCode: -1, Since: nowMinus(two)}
	for want, s := range map[string]client.Slot{
		"up (pid 31604) 2 seconds":                  up,
		"up (pid 31604) 2 seconds, normally down":   with(up, func(s *client.Slot) { s.NormallyUp = false }),
		"up (pid 31604) 2 seconds, ready 1 seconds": with(up, func(s *client.Slot) { s.Ready, s.ReadySince = true, nowMinus(time.Second) }),
		"up (pid 31604) 2 seconds, paused":          with(up, func(s *client.Slot) { s.Paused = true }),
		"up (pid 31604) 2 seconds, want down":       with(up, func(s *client.Slot) { s.WantUp = false }),
		"up (pid 31604) 2 seconds, normally down, paused, want down, ready 2 seconds": with(up, func(s *client.Slot) {
			s.NormallyUp, s.Paused, s.WantUp, s.Ready = false, true, false, true
		}),
		"down (exitcode 0) 2 seconds, normally up, ready 2 seconds":            down,
		"down (exitcode 78) 2 seconds, normally up, ready 2 seconds":           with(down, func(s *client.Slot) { s.ExitCode = 78 }),
		"down (exitcode 3) 2 seconds, normally up, want up, ready 2 seconds":   with(down, func(s *client.Slot) { s.ExitCode, s.WantUp = 3, true }),
		"down (exitcode 3) 2 seconds, want up, ready 2 seconds":                with(down, func(s *client.Slot) { s.ExitCode, s.WantUp, s.NormallyUp = 3, true, false }),
		"down (exitcode 3) 2 seconds, ready 2 seconds":                         with(down, func(s *client.Slot) { s.ExitCode, s.NormallyUp = 3, false }),
		"down (exitcode 1) 2 seconds, normally up, want up":                    with(down, func(s *client.Slot) { s.ExitCode, s.WantUp, s.Finishing = 1, true, true }),
		"down (signal SIGTERM) 2 seconds, normally up, ready 2 seconds":        with(down, func(s *client.Slot) { s.ExitCode, s.Signal = -1, 15 }),
		"down (signal SIGABRT) 2 seconds, normally up, ready 2 seconds":        with(down, func(s *client.Slot) { s.ExitCode, s.Signal = -1, 6 }),
		"down (not started yet) ":                                              {},
		"down (not started yet) , normally up, want up":                        {NormallyUp: true, WantUp: true, Since: nowMinus(two)},
		"down (exitcode 0) 0 seconds, normally up, ready 0 seconds":            with(down, func(s *client.Slot) { s.Since, s.ReadySince = now.Add(time.Hour), time.Time{} }),
		"down (signal SIG64) 2 seconds, normally up, want up, ready 1 seconds": with(down, func(s *client.Slot) { s.Signal, s.WantUp, s.ReadySince = 64, true, nowMinus(time.Second) }),
	} {
		if got := statusLine(s, now, false); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	signalled := with(down, func(s *client.Slot) { s.Signal = 15 })
	if got, want := statusLine(signalled, now, true), "down (signal 15) 2 seconds, normally up, ready 2 seconds"; got != want {
		t.Errorf("with numbers: got %q, want %q", got, want)
	}
}

// allFields lists the fields in the usage text of s6-svstat, and pgid.
const allFields = "up,wantedup,normallyup,ready,paused,pid,exitcode,signal,signum,updownsince,readysince,updownfor,readyfor,pgid"

func TestFieldsAreThoseOfS6(t *testing.T) {
	at := func(label string) time.Time {
		when, rest, ok := formats.ParseTAI64N(label)
		if !ok || rest != "" {
			t.Fatalf("%s is no label", label)
		}
		return when
	}
	since, ready := at("@400000006b00e1271161a901"), at("@400000006b00e12711381c0a")
	when := since.Add(2 * time.Second)
	for want, s := range map[string]client.Slot{
		"true true true false false 31604 -1 NA -1 @400000006b00e1271161a901 @400000006b00e12711381c0a 2 2 31604": {
			Up: true, WantUp: true, NormallyUp: true, EverStarted: true, PID: 31604, PGID: 31604, ExitCode: -1, Since: since, ReadySince: ready,
		},
		"false false true false false -1 0 NA -1 @400000006b00e1271161a901 @400000006b00e12711381c0a 2 2 -1": {
			NormallyUp: true, EverStarted: true, Since: since, ReadySince: ready,
		},
		"false true true false false -1 -1 SIGSEGV 11 @400000006b00e1271161a901 @400000006b00e1271161a901 2 2 -1": {
			NormallyUp: true, WantUp: true, EverStarted: true, Ready: true, Paused: true, ExitCode: -1, Signal: 11, PID: 5, PGID: 5, Since: since,
		},
		"false false false false false -1 -1 NA -1 @400000006b00e1271161a901 @400000006b00e1271161a901 2 2 -1": {Since: since},
		"true true true true false 31590 -1 NA -1 @400000006b00e1271161a901 @400000006b00e12711381c0a 2 2 31590": {
			Up: true, WantUp: true, NormallyUp: true, Ready: true, EverStarted: true, PID: 31590, PGID: 31590, ExitCode: 3, Signal: 9, Since: since, ReadySince: ready,
		},
	} {
		if got := statusFields(s, strings.Split(allFields, ","), when); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// pidInParentheses is the expression by which older agents read a status.
var pidInParentheses = regexp.MustCompile(`\(pid (\d+)\)`)

func FuzzBothKindsOfCallersUnderstandEveryStatus(f *testing.F) {
	f.Add(true, true, uint8(0), 4711, 0, int64(90))
	f.Add(false, true, uint8(255), 0, 9, int64(-4))
	f.Fuzz(func(t *testing.T, up, started bool, bits uint8, pid, signal int, age int64) {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		s := client.Slot{
			Up: up, EverStarted: started || up, WantUp: bit(0), NormallyUp: bit(1), Ready: bit(2) && up, Paused: bit(3), Finishing: bit(4) && !up,
			PID: pid & 0x3fffff, Signal: signal & 63, ExitCode: -1, Since: nowMinus(time.Duration(age)),
		}
		line := statusLine(s, now, false)
		if strings.ContainsAny(line, "\n\r") {
			t.Fatalf("%q is not one line", line)
		}
		if running := strings.Contains(line, "up "); running != up && !strings.Contains(line, "normally up ") {
			t.Fatalf("%q says running=%t, want %t", line, running, up)
		}
		m := pidInParentheses.FindStringSubmatch(line)
		if up != (m != nil) || up && m[1] != strconv.Itoa(s.PID) {
			t.Fatalf("%q does not name pid %d", line, s.PID)
		}
		if got := statusFields(s, []string{"up"}, now); got != strconv.FormatBool(up) {
			t.Fatalf("field up is %q", got)
		}
		n, err := strconv.Atoi(statusFields(s, []string{"pid"}, now))
		if err != nil || up && n != s.PID || !up && n != -1 {
			t.Fatalf("field pid is %d, %v", n, err)
		}
	})
}

func TestASignalWithoutANameHasItsNumber(t *testing.T) {
	for number, want := range map[int]string{9: "SIGKILL", 6: "SIGABRT", 40: "SIG40"} {
		if got := signalName(number); got != want {
			t.Errorf("signal %d is %s, want %s", number, got, want)
		}
	}
}
