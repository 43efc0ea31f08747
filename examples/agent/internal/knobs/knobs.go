// Package knobs holds what the example agent can be told to do wrong, so that a supervisor can be tested against it.
//
// The environment variable AGENT_<NAME> sets a knob for all gateways of a container. A line name=value in the file agent.conf of
// a profile's home sets it for that profile, and wins. The package owns no goroutines.
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

// Knobs are the settings of one gateway run. See Table for what each one does.
type Knobs struct {
	StartupDelay  time.Duration
	StartCPU      time.Duration
	Drain         time.Duration
	Heartbeat     time.Duration
	Beat          time.Duration
	LateHandlers  time.Duration
	TakeoverGrace time.Duration

	Platforms json.RawMessage // value of platforms in the state file; nil: none

	CrashAfter    time.Duration
	CrashCode     int
	CrashTimes    int
	ExitNow       int // exit code of an immediate exit; NoExit: none
	DashboardCode int
	SignalAfter   time.Duration
	Signal        unix.Signal

	IgnoreTerm  bool
	Flood       int // lines to print a second; FloodMax: as many as possible
	FloodBytes  int
	FloodLines  int
	HalfLine    bool
	BigLine     int
	CloseStdout bool

	LeakChild string
	LeakFor   time.Duration
	Orphans   int
	OOM       int // memory to allocate, in megabytes
	SpawnDiag bool
}

const (
	// NoExit as Knobs.ExitNow means that the gateway does not exit at once.
	NoExit = -1
	// FloodMax as Knobs.Flood means lines as fast as they can be written.
	FloodMax = -1
)

// Ways to leave a child behind, values of Knobs.LeakChild.
const (
	LeakPlain      = "plain"
	LeakSetsid     = "setsid"
	LeakDoubleFork = "doublefork"
	LeakDaemon     = "doublefork-setsid-cleanenv"
)

// Load reads the knobs of the gateway whose home is given: the defaults, then the environment, then agent.conf. It stops at the
// first invalid value and at an unknown name in the file. Unknown AGENT_ variables are ignored.
func Load(getenv func(string) string, home string) (Knobs, error) {
	k := Knobs{ExitNow: NoExit}
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
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // another step reports a home that can't be used
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
