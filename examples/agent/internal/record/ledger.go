package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// An ExitLedger is a file in which a gateway process records that it runs, and later that it has ended cleanly. The next gateway
// reads it.
type ExitLedger struct {
	home  string
	pid   int
	start float64
}

type ledgerFile struct {
	Phase            string  `json:"phase"`
	PID              int     `json:"pid"`
	StartTime        float64 `json:"start_time,omitempty"` // Seconds since 1970; the state file has another format.
	StartedAt        string  `json:"started_at,omitempty"`
	PriorUncleanExit bool    `json:"prior_unclean_exit,omitempty"`
	ExitCode         *int    `json:"exit_code,omitempty"`
	ExitReason       string  `json:"exit_reason,omitempty"`
	ExitedAt         string  `json:"exited_at,omitempty"`
}

func ledgerPath(home string) string { return filepath.Join(home, "state", "gateway.lifecycle.json") }

// OpenLedger writes the phase "running" for this process. priorUnclean is true if the previous gateway did not end cleanly. In
// this case OpenLedger also appends a line to logs/gateway-exit-diag.log.
func OpenLedger(home string) (ledger *ExitLedger, priorUnclean bool, err error) {
	now := time.Now()
	ledger = &ExitLedger{home: home, pid: os.Getpid(), start: float64(now.UnixMicro()) / 1e6}
	prior, priorErr := readLedger(home)
	priorUnclean = priorErr == nil && prior.Phase == "running"
	err = writeLedger(home, ledgerFile{
		Phase: "running", PID: ledger.pid, StartTime: ledger.start, StartedAt: Timestamp(now), PriorUncleanExit: priorUnclean,
	})
	if priorUnclean {
		err = errors.Join(err, appendDiagnosis(home, prior, now))
	}
	return ledger, priorUnclean, err
}

// Close writes the phase "exited", unless another process has already written to the ledger.
func (l *ExitLedger) Close(code int, reason string) error {
	if current, err := readLedger(l.home); err == nil && current.PID != l.pid {
		return nil
	}
	return writeLedger(l.home, ledgerFile{
		Phase: "exited", PID: l.pid, StartTime: l.start, ExitCode: &code, ExitReason: reason, ExitedAt: Timestamp(time.Now()),
	})
}

func readLedger(home string) (ledgerFile, error) {
	var content ledgerFile
	data, err := os.ReadFile(ledgerPath(home))
	if err != nil {
		return content, err
	}
	return content, json.Unmarshal(data, &content)
}

func writeLedger(home string, content ledgerFile) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(ledgerPath(home)), 0o755); err != nil {
		return fmt.Errorf("cannot write the lifecycle ledger: %w", err)
	}
	return ReplaceFile(ledgerPath(home), data, 0o600, ".gateway.lifecycle_*.tmp")
}

func appendDiagnosis(home string, prior ledgerFile, now time.Time) error {
	line, err := json.Marshal(map[string]any{
		"tag": "gateway.previous_unclean_exit", "pid": prior.PID, "started_at": prior.StartedAt, "found_at": Timestamp(now),
	})
	if err != nil {
		return err
	}
	path := filepath.Join(home, "logs", "gateway-exit-diag.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot record the unclean exit: %w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("cannot record the unclean exit: %w", err)
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}
