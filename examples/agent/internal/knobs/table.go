package knobs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Knob is a row of [Table]: one setting of the agent.
type Knob struct {
	Name    string // Name in agent.conf; the environment variable is AGENT_ and the name in upper case.
	Default string
	Help    string
	set     func(*Knobs, string) error
}

// Table lists all knobs in the order in which help shows them.
func Table() []Knob {
	return []Knob{
		{"startup_delay", "50ms", "time from \"starting\" to \"running\"", durationSetter(func(k *Knobs) *time.Duration { return &k.StartupDelay })},
		{"start_cpu", "0", "processor time that the start takes, as the real one's imports do", durationSetter(func(k *Knobs) *time.Duration { return &k.StartCPUTime })},
		{"drain", "100ms", "time from \"draining\" to the end", durationSetter(func(k *Knobs) *time.Duration { return &k.DrainTime })},
		{"heartbeat", "30s", "interval of the heartbeat line; 0: none", durationSetter(func(k *Knobs) *time.Duration { return &k.HeartbeatInterval })},
		{"beat", "0", "interval at which updated_at of the state file is written anew; 0: never", durationSetter(func(k *Knobs) *time.Duration { return &k.StateWriteInterval })},
		{"late_handlers", "0", "do nothing and handle no signal for so long first", durationSetter(func(k *Knobs) *time.Duration { return &k.SignalHandlerDelay })},
		{"takeover_grace", "10s", "what --replace waits between TERM and KILL of the old gateway", durationSetter(func(k *Knobs) *time.Duration { return &k.TakeoverGrace })},

		{"platforms", "", "what the state file says of its platforms when it is up, as a JSON object", jsonSetter(func(k *Knobs) *json.RawMessage { return &k.StatePlatforms })},

		{"crash_after", "0", "end without any cleaning up after so long; 0: never", durationSetter(func(k *Knobs) *time.Duration { return &k.CrashAfter })},
		{"crash_code", "1", "exit code of that crash", intSetter(func(k *Knobs) *int { return &k.CrashCode })},
		{"crash_times", "0", "crash_after, exit_now and signal_after act on the first N starts only; 0: on all", intSetter(func(k *Knobs) *int { return &k.MaxCrashes })},
		{"exit_now", "", "exit with this code instead of getting up", exitCodeSetter(func(k *Knobs) *int { return &k.ExitAtOnceCode })},
		{"dashboard_code", "78", "exit code of a dashboard that refuses to bind; 1: as of July 2026", intSetter(func(k *Knobs) *int { return &k.DashboardCode })},
		{"signal_after", "0", "die by a signal after so long; 0: never", durationSetter(func(k *Knobs) *time.Duration { return &k.SignalAfter })},
		{"signal", "SEGV", "that signal", signalSetter(func(k *Knobs) *unix.Signal { return &k.Signal })},

		{"ignore_term", "0", "1: deaf to SIGTERM and to planned-stop markers", boolSetter(func(k *Knobs) *bool { return &k.IgnoreTerm })},
		{"flood", "0", "print so many lines a second; max: as fast as it goes", rateSetter(func(k *Knobs) *int { return &k.FloodRate })},
		{"flood_bytes", "80", "length of each of them, newline included", intSetter(func(k *Knobs) *int { return &k.FloodBytes })},
		{"flood_lines", "0", "stop flooding after so many lines; 0: never", intSetter(func(k *Knobs) *int { return &k.FloodLines })},
		{"half_line", "0", "1: the last output is a line without an end", boolSetter(func(k *Knobs) *bool { return &k.UnfinishedLine })},
		{"big_line", "0", "print one line of so many bytes when up", intSetter(func(k *Knobs) *int { return &k.LongLineBytes })},
		{"close_stdout", "0", "1: close the standard output when up", boolSetter(func(k *Knobs) *bool { return &k.CloseStdout })},

		{"leak_child", "", "leave a child behind: plain, setsid, doublefork or doublefork-setsid-cleanenv", leakKindSetter(func(k *Knobs) *string { return &k.LeakChild })},
		{"leak_for", "10m", "how long that child lives", durationSetter(func(k *Knobs) *time.Duration { return &k.LeakLifetime })},
		{"orphans", "0", "make so many short-lived orphans when up", intSetter(func(k *Knobs) *int { return &k.OrphanCount })},
		{"oom", "0", "allocate and touch so many megabytes when up", intSetter(func(k *Knobs) *int { return &k.AllocateMB })},
		{"spawn_diag", "0", "1: at the start of a shutdown start a helper in its own session that lives 5 s", boolSetter(func(k *Knobs) *bool { return &k.SpawnDiagnostic })},
	}
}

func durationSetter(field func(*Knobs) *time.Duration) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil {
			seconds, numberErr := strconv.ParseUint(value, 10, 32)
			if numberErr != nil {
				return fmt.Errorf("%q is not a duration such as 3s or 100ms", value)
			}
			d = time.Duration(seconds) * time.Second
		}
		if d < 0 {
			return fmt.Errorf("%q is negative", value)
		}
		*field(k) = d
		return nil
	}
}

func intSetter(field func(*Knobs) *int) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return fmt.Errorf("%q is not a whole number of 0 or more", value)
		}
		*field(k) = int(n)
		return nil
	}
}

func jsonSetter(field func(*Knobs) *json.RawMessage) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		var members map[string]json.RawMessage
		if value != "" && json.Unmarshal([]byte(value), &members) != nil {
			return fmt.Errorf("%q is not a JSON object", value)
		}
		*field(k) = json.RawMessage(value)
		return nil
	}
}

func exitCodeSetter(field func(*Knobs) *int) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		if value == "" {
			*field(k) = NoExit
			return nil
		}
		code, err := strconv.ParseUint(value, 10, 8)
		if err != nil {
			return fmt.Errorf("%q is not an exit code", value)
		}
		*field(k) = int(code)
		return nil
	}
}

func boolSetter(field func(*Knobs) *bool) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		switch strings.ToLower(value) {
		case "1", "true", "yes", "on":
			*field(k) = true
		case "0", "false", "no", "off", "":
			*field(k) = false
		default:
			return fmt.Errorf("%q is neither 1 nor 0", value)
		}
		return nil
	}
}

func signalSetter(field func(*Knobs) *unix.Signal) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		name := strings.ToUpper(value)
		sig := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG"))
		if sig == 0 {
			return fmt.Errorf("%q is not a signal such as SEGV", value)
		}
		*field(k) = sig
		return nil
	}
}

func rateSetter(field func(*Knobs) *int) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		if value == "max" {
			*field(k) = FloodMax
			return nil
		}
		return intSetter(field)(k, value)
	}
}

func leakKindSetter(field func(*Knobs) *string) func(*Knobs, string) error {
	return func(k *Knobs, value string) error {
		if value != "" && !slices.Contains([]string{LeakSameSession, LeakSetsid, LeakDoubleFork, LeakDaemon}, value) {
			return fmt.Errorf("%q is none of plain, setsid, doublefork, doublefork-setsid-cleanenv", value)
		}
		*field(k) = value
		return nil
	}
}
