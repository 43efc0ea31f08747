package client

import "time"

// RunRequest asks for a one-shot run of a configured command (POST /v1/runs), as the agent's user and in a new session.
type RunRequest struct {
	Template string            `json:"template"`          // name of the command, which is built in or in hinit.yaml (runs)
	Tag      string            `json:"tag"`               // the client's name for the run; if a run has this tag already, nothing is started
	Profile  string            `json:"profile"`           // value of {profile}; the run gets the profile's home as HERMES_HOME
	Task     string            `json:"task,omitempty"`    // value of {task}
	Options  []string          `json:"options,omitempty"` // words that replace the word {options} of the command
	Env      map[string]string `json:"env,omitempty"`     // variables added to the container's environment
	Dir      string            `json:"dir,omitempty"`     // working directory; "" is the agent's working directory
	Log      string            `json:"log,omitempty"`     // file to which the output of the run is appended; "" is none
	// LimitMS limits the run's duration; 0 means no limit. GraceMS is the time between TERM and KILL; 0 means the time that
	// hinit.yaml sets.
	LimitMS int64 `json:"limit_ms,omitempty"`
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// The values of [Run.Asked]: why a client or hinit has asked a run to end.
const (
	RunStopped  = "stopped"  // a client stopped the run
	RunTimedOut = "timeout"  // the time limit of the run was reached
	RunShutdown = "shutdown" // the container shuts down, or the process that started the run has ended
)

// Run is a one-shot run of a configured command.
type Run struct {
	ID         string    `json:"id"` // unique among all runs of all containers
	Seq        uint64    `json:"seq"`
	Tag        string    `json:"tag"`
	Template   string    `json:"template"`
	Profile    string    `json:"profile"`
	Service    string    `json:"service"` // name of the run in `hinit events`
	PID        int       `json:"pid"`     // process id, 0 when the run could not be started
	StartTicks uint64    `json:"start_ticks"`
	StartedAt  time.Time `json:"started_at"`
	Log        string    `json:"log"`
	Asked      string    `json:"asked"` // why a client or hinit has asked the run to end, "" if none did
	End        *RunEnd   `json:"end"`   // null while a process of the run is alive
}

// RunEnd says when and how a run ended.
type RunEnd struct {
	Exit
	Lost       bool    `json:"lost"` // the end of the run was not seen, so the exit is unknown
	OOM        bool    `json:"oom"`
	CPUSeconds float64 `json:"cpu_seconds"`
	MaxRSS     int64   `json:"max_rss_bytes"`
}

// RunsReply is the answer to GET /v1/runs.
type RunsReply struct {
	Runs []Run `json:"runs"`
}

// StatusTextRequest is the text that a service shows in the status (POST /v1/services/{name}/say).
type StatusTextRequest struct {
	Text string `json:"text"`
}

// Slot is a service as the tools of s6 see it: one directory of the scan directory. Its times are exact; [Service] rounds them.
type Slot struct {
	Name       string    `json:"name"`        // name of the service: gateway-coder, dashboard, foo, foo/log
	Dir        string    `json:"dir"`         // service directory, an absolute path
	Up         bool      `json:"up"`          // the main process is alive; false while only a finish program runs
	WantUp     bool      `json:"want_up"`     // the desired state is up
	NormallyUp bool      `json:"normally_up"` // the service starts without an order: its directory has no down file
	Ready      bool      `json:"ready"`       // the main process is up and has reported readiness
	Paused     bool      `json:"paused"`      // a command has paused the service with a signal; false if another process has sent the signal
	Finishing  bool      `json:"finishing"`   // the main process has ended, and the finish program or a leftover process still runs
	Started    bool      `json:"started"`     // the run program was started at least once
	Notifies   bool      `json:"notifies"`    // the service reports its readiness
	Permanent  bool      `json:"permanent"`   // the service will not start again by itself: its finish program said so, or it is parked or failed
	Run        uint64    `json:"run"`         // number of the current or last run, 0 before the first
	PID        int       `json:"pid"`         // process id, 0 when the service is not up
	PGID       int       `json:"pgid"`        // process group id, 0 when the service is not up
	ExitCode   int       `json:"exitcode"`    // exit code of the last run, -1 without a run or if a signal ended it
	Signal     int       `json:"signal"`      // signal that ended the last run, 0 when none did
	Since      time.Time `json:"since"`       // time of the last change between up and down
	ReadySince time.Time `json:"ready_since"` // time of readiness, or, if the service is down, the time at which its last process ended; otherwise zero
}

// SlotsReply is the answer to a request for slots.
type SlotsReply struct {
	Slots []Slot `json:"slots"`
}

// SlotControl is the body of a command to a slot.
type SlotControl struct {
	Dir   string `json:"dir"`
	Flags string `json:"flags"` // the letters of s6-svc, without the dash
}

// SlotScan is the body of a command to the scanner.
type SlotScan struct {
	Flags string `json:"flags"` // the letters of s6-svscanctl, without the dash
}
