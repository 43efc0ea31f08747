package client

import (
	"time"
)

// RunRequest asks for a one-shot run of a configured command (POST /v1/runs), as the agent's user and in a session of its own.
type RunRequest struct {
	Template string            `json:"template"`          // name of the command in hinit.yaml (runs) or built in
	Tag      string            `json:"tag"`               // the client's name for the run; a known tag means the existing run and starts nothing
	Profile  string            `json:"profile"`           // value of {profile}; the run gets the profile's home as HERMES_HOME
	Task     string            `json:"task,omitempty"`    // value of {task}
	Options  []string          `json:"options,omitempty"` // words in the place of the word {options}
	Env      map[string]string `json:"env,omitempty"`     // set on top of the container's environment
	Dir      string            `json:"dir,omitempty"`     // working directory; "" is the agent's
	Log      string            `json:"log,omitempty"`     // file that takes its output, appended; "" is none
	// LimitMS limits the run's duration; 0 is no limit. GraceMS is the time between TERM and KILL; 0 is the template's.
	LimitMS int64 `json:"limit_ms,omitempty"`
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// Reasons to end a run.
const (
	RunStopped  = "stopped"  // a client stopped it
	RunTimedOut = "timeout"  // its limit was over
	RunShutdown = "shutdown" // the container ends, or the process that started the run
)

// Run is a one-shot run.
type Run struct {
	ID         string    `json:"id"` // unique among all runs of all containers
	Seq        uint64    `json:"seq"`
	Tag        string    `json:"tag"`
	Template   string    `json:"template"`
	Profile    string    `json:"profile"`
	Service    string    `json:"service"` // name in `hinit events`
	PID        int       `json:"pid"`     // 0 when it could not be started
	StartTicks uint64    `json:"start_ticks"`
	StartedAt  time.Time `json:"started_at"`
	Log        string    `json:"log"`
	Asked      string    `json:"asked"` // reason for which a client or hinit asked it to end, "" if none did
	End        *RunEnd   `json:"end"`   // null while a process of the run is alive
}

// RunEnd says how a run ended.
type RunEnd struct {
	Exit
	Lost       bool    `json:"lost"` // how it ended is unknown
	OOM        bool    `json:"oom"`
	CPUSeconds float64 `json:"cpu_seconds"`
	MaxRSS     int64   `json:"max_rss_bytes"`
}

// RunsReply is the answer to GET /v1/runs.
type RunsReply struct {
	Runs []Run `json:"runs"`
}

// Said is the text that a service shows in the status (POST /v1/services/{name}/say).
type Said struct {
	Text string `json:"text"`
}
