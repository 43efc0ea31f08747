package client

import (
	"fmt"
	"time"
)

// Event is a record of the history: a change of state (from and to), the end of a run (exit), or a remark. A reader
// that is too slow gets an event with only the key lost.
type Event struct {
	Seq        uint64    `json:"seq"` // number of the event, from 1
	At         time.Time `json:"at"`
	Service    string    `json:"service"` // "" for an event of the container
	FromState  string    `json:"from"`
	ToState    string    `json:"to"`
	Reason     string    `json:"reason"` // reason of the event, for people
	PID        int       `json:"pid"`    // main process, 0 when there is none
	Exit       *Exit     `json:"exit"`   // exit of the run; null in other events
	Author     *Author   `json:"by,omitzero"`
	NoticeKey  string    `json:"key,omitzero"`  // a notice's key; absent in other events
	NoticeData string    `json:"data,omitzero"` // a notice's data, control characters escaped; absent in other events
	LostCount  uint64    `json:"lost,omitzero"` // number of missed events; all other keys are empty
}

// The values of [Author].Way: how an order has reached hinit.
const (
	OriginExec = "exec" // the API, from outside the container, for example by docker exec
	OriginAPI  = "api"  // the API, from a process of the container
	OriginS6   = "s6"   // the tools of s6
	OriginFIFO = "fifo" // the FIFO beside the control socket
)

// Author is the client that gave an order.
type Author struct {
	UID     int    `json:"uid"`              // uid of the client, as the kernel reports it
	PID     int    `json:"pid"`              // process id, 0 if unknown
	Program string `json:"program"`          // name that the process gives itself (comm); "" if the process has ended
	Origin  string `json:"way" reexec:"Way"` // way of the order: exec, api, s6 or fifo
}

// LostEvents is the line that tells a slow reader how many events it has missed.
type LostEvents struct {
	Lost uint64 `json:"lost"`
}

// CommandRequest is the body of a request to start, stop or restart a service. Every key is optional.
type CommandRequest struct {
	Wait      *bool `json:"wait,omitempty"`       // whether to answer only when the desired state is reached; absent: true
	TimeoutMS int64 `json:"timeout_ms,omitempty"` // time to wait; 0 is the default of the command
	Force     bool  `json:"force,omitempty"`      // start the profile's own gateway even if the gateway of the default profile serves the profile
}

// ChecksRequest is the body of a request that pauses, resumes or runs the checks of a service.
type ChecksRequest struct {
	PauseMS int64 `json:"pause_ms,omitempty"` // length of the pause; 0 ends a pause and runs the checks now
}

// SignalRequest is the body of a request that sends a signal.
type SignalRequest struct {
	Signal int `json:"signal"` // number of the signal
}

// TopologyModes are the values of [Topology].Mode.
var TopologyModes = []string{"per-profile", "multiplexed", "auto"}

// Topology is the body of a request to change how many gateways serve the profiles. Every key is optional.
type Topology struct {
	Mode   string `json:"mode,omitempty"`    // per-profile, multiplexed or auto; "" only asks for the current topology
	DryRun bool   `json:"dry_run,omitempty"` // describe the effects, and change nothing
}

// TopologyReply describes how many gateways serve the profiles.
type TopologyReply struct {
	Mode      string   `json:"mode"`  // per-profile, or multiplexed: the default profile's gateway serves all
	DecidedBy string   `json:"from"`  // file or variable that decides, "" for the default
	Steps     []string `json:"steps"` // effects on gateways, in order
	DryRun    bool     `json:"dry_run"`
}

// ConfigEntry is one value of the configuration in force.
type ConfigEntry struct {
	Key    string `json:"key"`    // key, as in hinit.yaml, with dots
	Value  any    `json:"value"`  // text, bool, number or list; durations are text
	Origin string `json:"origin"` // origin of the value: "default", "<file>:<line>" or "env <variable>"
}

// ConfigReply is the answer to a request for the configuration.
type ConfigReply struct {
	Entries []ConfigEntry `json:"entries"`
}

// Reload is the body of a request to reload the configuration. Every key is optional.
type Reload struct {
	DryRun bool `json:"dry_run,omitempty"` // describe the effects, and change nothing
	Force  bool `json:"force,omitempty"`   // treat a missing file as an empty one
}

// ReloadReply is the answer to a reload of the configuration.
type ReloadReply struct {
	Changes  []string     `json:"changes"`  // changed keys
	Plan     []ReloadStep `json:"plan"`     // effects on services, sorted by name
	Settings []string     `json:"settings"` // changed keys that belong to no single service
	DryRun   bool         `json:"dry_run"`
}

// ExamineReply is the result of an examination of the data volume. Findings is never null.
type ExamineReply struct {
	Findings Findings `json:"findings"`
}

// ReloadStep is the effect of a reload on one service.
type ReloadStep struct {
	Op      string `json:"op"` // "+": the service is new or starts, "~": it is changed, "-": it stops or is gone
	Service string `json:"service"`
	Effect  string `json:"what"` // effect for people, such as "changed, restart to apply"
}

// The values of the query parameter "probe" of a health request: the probes of a Kubernetes pod.
const (
	ProbeStartup = "startup" // the boot is over
	ProbeReady   = "ready"   // the container serves all profiles and services that it should serve; a standby is not ready
	ProbeLive    = "live"    // the supervisor works, so restarting the container would not help
)

// Health says whether hinit works. Services in trouble don't count, because a restart of the container would not help them.
type Health struct {
	// the probe succeeds; without a probe: hinit works after the boot
	OK            bool     `json:"ok"`
	Reason        string   `json:"reason"`            // why ok is false, "" when ok is true
	Booting       bool     `json:"booting,omitempty"` // the boot still runs, so ok is false
	WaitingReason string   `json:"waiting,omitempty"` // why the container does not serve the volume yet
	WantedUp      int      `json:"wanted"`            // services that are wanted up
	Up            int      `json:"up"`                // services that are wanted up and are up
	Troubled      []string `json:"troubled"`          // services that are parked, failed, in a crash loop, or failing a check
}

// Reexec is the body of a request to re-execute hinit: to replace its program and keep its process.
type Reexec struct {
	Binary string `json:"binary,omitempty"` // file of the new program; "" is the file that the running program was started from
}

// ReexecReply says that a re-execution has begun. It has succeeded when the status shows a higher image number, and failed when
// the status has a reexec_error.
type ReexecReply struct {
	Generation int `json:"image"` // number of the present program, which the status calls image
}

// Notice is a remark that a client adds to the history (POST /v1/notices).
type Notice struct {
	Key  string `json:"key"`            // key of the notice: 1 to 64 letters, digits and ./_-
	Data string `json:"data,omitempty"` // data of the notice, at most 1024 bytes
}

// TableFormat describes how the table of the status looks. The zero value suits a file.
type TableFormat struct {
	Width   int  // columns of the terminal; 0 for no limit
	Colour  bool // print the states in colours
	Verbose bool // show how long the boot and its steps took
}

// WaitOptions says whether and how long a command waits for its effect. The zero value doesn't wait.
type WaitOptions struct {
	Wait    bool
	Timeout time.Duration // time limit, at most an hour; 0 is 30 seconds, and 40 seconds for Stop and Restart
	Force   bool          // start the profile's own gateway even if another gateway serves the profile
}

// Verb is an order to a service. It is also the last part of the request's path.
type Verb string

// EventOptions selects events. The zero value selects the whole history.
type EventOptions struct {
	AfterSeq uint64 // select only events after this Seq
	MaxPast  int    // maximum number of past events; 0 means no limit, and a negative number means none
	Follow   bool   // continue with new events
}

// The orders that a client can give to a service.
const (
	VerbStart   Verb = "start"
	VerbStop    Verb = "stop"
	VerbRestart Verb = "restart"
	VerbRunOnce Verb = "run-once"
)

// Finding is the result of one check of `hinit doctor`.
type Finding struct {
	Check  string `json:"check"`  // subject of the check
	Result string `json:"result"` // result of the check: ok, warning or failed
	Detail string `json:"detail"` // text for people, with advice
}

// The results of a check.
const (
	ResultOK      = "ok"
	ResultWarning = "warning"
	ResultFailed  = "failed"
)

// Findings are the results of several checks, in the order of the checks.
type Findings []Finding

// OK adds the result of a check that has found no fault. fmt.Sprintf formats the detail.
func (f *Findings) OK(check, format string, args ...any) { f.add(check, ResultOK, format, args) }

// Warning adds a possible fault, or a check that could not be made.
func (f *Findings) Warning(check, format string, args ...any) {
	f.add(check, ResultWarning, format, args)
}

// Failed adds a fault.
func (f *Findings) Failed(check, format string, args ...any) {
	f.add(check, ResultFailed, format, args)
}

func (f *Findings) add(check, result, format string, args []any) {
	*f = append(*f, Finding{Check: check, Result: result, Detail: fmt.Sprintf(format, args...)})
}

// RunRequest asks for a one-shot run of a configured command, as the agent's user and in its own session (POST /v1/runs).
type RunRequest struct {
	Template string            `json:"template"`          // name of the command, from hinit.yaml (runs) or built in
	Tag      string            `json:"tag"`               // the client's name for the run; if a run with this tag exists, no other is started
	Profile  string            `json:"profile"`           // value of {profile}; the run gets the home of this profile as HERMES_HOME
	Task     string            `json:"task,omitempty"`    // value of {task}
	Options  []string          `json:"options,omitempty"` // words that replace the word {options} of the command
	Env      map[string]string `json:"env,omitempty"`     // variables added to the container's environment
	Dir      string            `json:"dir,omitempty"`     // working directory; "" is the agent's working directory
	Log      string            `json:"log,omitempty"`     // file to which the output of the run is appended; "" is none
	// LimitMS is the longest duration of the run; 0 means no limit. GraceMS is the time from SIGTERM to SIGKILL; 0 means the time
	// in hinit.yaml.
	LimitMS int64 `json:"limit_ms,omitempty"`
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// The values of [Run.Asked]: why a run was asked to end.
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
	StopReason string    `json:"asked" reexec:"Asked"` // why a client or hinit has asked the run to end, "" if none did
	End        *RunEnd   `json:"end"`                  // how the run ended; null while a process of the run is alive
}

// RunEnd says when and how a run ended.
type RunEnd struct {
	Exit
	ExitUnknown bool    `json:"lost" reexec:"Lost"` // hinit has not seen the end of the run, so the exit is unknown
	OOM         bool    `json:"oom"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	MaxRSS      int64   `json:"max_rss_bytes"`
}

// RunsReply is the answer to GET /v1/runs.
type RunsReply struct {
	Runs []Run `json:"runs"`
}

// StatusTextRequest is the body of a request that sets the text of a service in the status (POST /v1/services/{name}/say).
type StatusTextRequest struct {
	Text string `json:"text"`
}

// Slot is a service as the programs of s6 see it: a directory in the scan directory. Its times are exact; the times of a
// [Service] are rounded.
type Slot struct {
	Name             string    `json:"name"`        // name of the service: gateway-coder, dashboard, foo, foo/log
	Dir              string    `json:"dir"`         // service directory, an absolute path
	Up               bool      `json:"up"`          // the main process is alive; false while only a finish program runs
	WantUp           bool      `json:"want_up"`     // the desired state is up
	NormallyUp       bool      `json:"normally_up"` // the service starts without an order, because its directory has no down file
	Ready            bool      `json:"ready"`       // the main process is up and has reported readiness
	Paused           bool      `json:"paused"`      // a command has paused the service with a signal; false if another process has sent the signal
	Finishing        bool      `json:"finishing"`   // the main process has ended, and the finish program or a leftover still runs
	EverStarted      bool      `json:"started"`     // the run program was started at least once
	Notifies         bool      `json:"notifies"`    // the service reports its readiness
	PermanentFailure bool      `json:"permanent"`   // the service will not start again by itself: its finish program has said so, or it is parked or failed
	RunNumber        uint64    `json:"run"`         // number of the current or last run, 0 before the first
	PID              int       `json:"pid"`         // process id, 0 when the service is not up
	PGID             int       `json:"pgid"`        // process group id, 0 when the service is not up
	ExitCode         int       `json:"exitcode"`    // exit code of the last run, -1 without a run or if a signal ended it
	Signal           int       `json:"signal"`      // signal that ended the last run, 0 when none did
	Since            time.Time `json:"since"`       // time of the last change between up and down
	// when the service became ready; if it is down, when its last process ended; otherwise zero
	ReadySince time.Time `json:"ready_since"`
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

// ScannerControl is the body of POST /v1/slots/scan, a command to the scanner of the s6 service directories.
type ScannerControl struct {
	Flags string `json:"flags"` // the letters of s6-svscanctl, without the dash
}
