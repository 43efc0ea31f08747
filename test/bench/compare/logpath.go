package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// Rows of test/bench/log with both a file and a console.
const (
	logHinit = "hinit, file + console"
	logS6    = "s6-log, file + console"
)

// logKinds maps the kinds of writers in test/bench/log to measures.
var logKinds = map[string]string{"64 KiB a write": "M5", "a line a write": "M5 lines"} //nolint:gochecknoglobals // this variable never changes

// readLogPath reads M5 from the file that test/bench/log has written.
func (b *bench) readLogPath() error {
	if b.logJSON == "" {
		b.addRemark("M5 is left out: no figures of test/bench/log are given")
		return nil
	}
	text, err := os.ReadFile(b.logJSON)
	if err != nil {
		return err
	}
	var report struct {
		Rows []struct {
			Logger, Writer string
			MBs            float64 `json:"mb_per_second"`
			CPUGB          float64 `json:"cpu_seconds_per_gb"`
			Load           span
			Shown          float64 // Share of the lines that reached the console; negative without a console.
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return fmt.Errorf("%s: %w", b.logJSON, err)
	}
	for _, r := range report.Rows {
		measure, known := logKinds[r.Writer]
		if !known {
			continue
		}
		b.figures.widenLoad(measure, r.Load)
		name := r.Logger
		if name == logHinit {
			name = hinitName
		}
		b.figures.addEarlier(measure, "MB/s", name, r.MBs)
		b.figures.addEarlier(measure, "CPU s/GB", name, r.CPUGB)
		if r.Shown >= 0 {
			b.figures.addEarlier(measure, consoleShare, name, r.Shown*100)
		}
	}
	return nil
}
