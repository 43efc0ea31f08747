package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// The rows of test/bench/log that have both sinks.
const (
	logHinit = "hinit, file + console"
	logS6    = "s6-log, file + console"
	logKind  = "64 KiB a write"
)

// logPath takes M5 over from what test/bench/log wrote.
func (b *bench) logPath() error {
	if b.logJSON == "" {
		b.note("M5 is left out: no figures of test/bench/log are given")
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
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return fmt.Errorf("%s: %w", b.logJSON, err)
	}
	for _, r := range report.Rows {
		if r.Writer != logKind {
			continue
		}
		name := r.Logger
		if name == logHinit {
			name = hinitName
		}
		b.figures.add("M5", "MB/s", name, r.MBs)
		b.figures.add("M5", "CPU s/GB", name, r.CPUGB)
	}
	return nil
}
