// Package knobs holds the settings that make the example agent misbehave, so that a supervisor can be tested against it.
//
// The environment variable AGENT_<NAME> sets a knob for all gateways of a container. A line name=value in the file agent.conf
// of a profile's home sets it for that profile, with priority over the variable. The package owns no goroutines.
package knobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FileName is the name of the knob file in a profile's home.
const FileName = "agent.conf"

// Knobs are the settings of one gateway run. [Table] describes each of them.
type Knobs struct {
	StartupDelay       time.Duration
	StartCPUTime       time.Duration
	DrainTime          time.Duration
	HeartbeatInterval  time.Duration
	StateWriteInterval time.Duration
	SignalHandlerDelay time.Duration
	TakeoverGrace      time.Duration

	StatePlatforms json.RawMessage // Value of platforms in the state file; nil: none.

	CrashAfter     time.Duration
	CrashCode      int
	MaxCrashes     int
	ExitAtOnceCode int // Code with which the gateway exits at once; NoExit: none.
	DashboardCode  int
	SignalAfter    time.Duration
	Signal         unix.Signal

	IgnoreTerm     bool
	FloodRate      int // Number of lines to print in a second; FloodMax: as many as possible.
	FloodBytes     int
	FloodLines     int
	UnfinishedLine bool
	LongLineBytes  int
	CloseStdout    bool

	LeakChild       string
	LeakLifetime    time.Duration
	OrphanCount     int
	AllocateMB      int // Memory to allocate, in megabytes.
	SpawnDiagnostic bool
}

const (
	// NoExit is the value of Knobs.ExitAtOnceCode with which the gateway does not exit at once.
	NoExit = -1
	// FloodMax is the value of Knobs.Flood with which the gateway prints lines as fast as it can.
	FloodMax = -1
)

// Values of Knobs.LeakChild: the ways to leave a child behind.
const (
	LeakSameSession = "plain"
	LeakSetsid      = "setsid"
	LeakDoubleFork  = "doublefork"
	LeakDaemon      = "doublefork-setsid-cleanenv"
)

// Load reads the knobs of the gateway with the given home: first the defaults, then the environment, then agent.conf. It
// returns an error for an invalid value, and for an unknown name in the file. It ignores unknown AGENT_ variables.
func Load(getenv func(string) string, home string) (Knobs, error) {
	k := Knobs{ExitAtOnceCode: NoExit}
	table := Table()
	for _, knob := range table {
		if err := knob.set(&k, knob.Default); err != nil {
			return k, err
		}
		if value := getenv("AGENT_" + strings.ToUpper(knob.Name)); value != "" {
			if err := knob.set(&k, value); err != nil {
				return k, fmt.Errorf("cannot use AGENT_%s: %w", strings.ToUpper(knob.Name), err)
			}
		}
	}
	path := filepath.Join(home, FileName)
	data, err := os.ReadFile(path)
	// No error here: another step reports a home that can't be used.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return k, nil
	}
	if err != nil {
		return k, fmt.Errorf("cannot read the knobs: %w", err)
	}
	for number, line := range strings.Split(string(data), "\n") {
		if err := setLine(&k, table, line); err != nil {
			return k, fmt.Errorf("cannot use %q, line %d: %w", path, number+1, err)
		}
	}
	return k, nil
}

func setLine(k *Knobs, table []Knob, line string) error {
	line = strings.TrimSpace(line)
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}
	name, value, found := strings.Cut(line, "=")
	if !found {
		return fmt.Errorf("%q is not name=value", line)
	}
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	for _, knob := range table {
		if knob.Name == name {
			return knob.set(k, value)
		}
	}
	return fmt.Errorf("no knob is called %q", name)
}
