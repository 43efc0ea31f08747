package mux

import "time"

// The paths that both sides use.
const (
	RunDir   = "/run/hinit"       // directory of the host in the container, for the socket
	ToolsDir = "/run/hinit-tools" // directory of the host in the container, read-only, with the helper
	Socket   = "sock-v4"          // name of the socket; other versions of the protocol have other names
)

// Hello is the first message of each side.
type Hello struct {
	Version int    `json:"version"`
	ID      string `json:"id,omitempty"` // identity with which the helper was started
}

// Op is the operation of a channel.
type Op string

// The operations.
const (
	OpRun           Op = "run"     // a command in the foreground; it ends with the connection
	OpStart         Op = "start"   // a command in the background; the channel ends when it has begun, with Jobs
	OpJobs          Op = "jobs"    // lists the background commands
	OpOutput        Op = "output"  // output of a background command, as KindOutput
	OpKill          Op = "kill"    // ends a background command; the channel ends when no process of it is left
	OpKillLeftovers Op = "bury"    // kills leftover processes of the command of a helper that has died
	OpPutTree       Op = "puttree" // makes files from KindInput, a tar archive
	OpGetTree       Op = "gettree" // sends files as KindOutput, a tar archive
)

// Open is the request that begins a channel.
type Open struct {
	Op      Op       `json:"op"`
	Argv    []string `json:"argv,omitempty"`
	Command string   `json:"command,omitempty"` // command for the shell, with the state of the session
	Session string   `json:"session,omitempty"`
	Shell   string   `json:"shell,omitempty"` // "" for bash, or sh without bash
	Begin   string   `json:"begin,omitempty"` // first directory of a session

	Env     map[string]string `json:"env,omitempty"`
	Forward map[string]string `json:"forward,omitempty"` // further variables at the beginning of a session
	Dir     string            `json:"dir,omitempty"`

	Input       bool   `json:"input,omitempty"` // standard input follows
	SplitErrors bool   `json:"apart,omitempty"` // standard error is a separate stream
	TTY         bool   `json:"tty,omitempty"`
	Columns     uint16 `json:"columns,omitempty"`
	Rows        uint16 `json:"rows,omitempty"`
	Timeout     int64  `json:"timeout,omitempty"` // milliseconds, 0 for none
	Grace       int64  `json:"grace,omitempty"`   // milliseconds
	Job         string `json:"job,omitempty"`
	Follow      bool   `json:"follow,omitempty"`
	Path        string `json:"path,omitempty"`
	PID         int    `json:"pid,omitempty"` // process id of the command whose leftovers OpKillLeftovers kills
}

// TerminalSize is the size of a terminal.
type TerminalSize struct{ Columns, Rows uint16 }

// Fault says why an operation failed.
type Fault string

// The faults.
const (
	NoFault   Fault = ""
	NotBegun  Fault = "not begun" // the command was not started; Code is a shell's code for that
	NoJob     Fault = "no job"
	FileFault Fault = "file"
	BadOpen   Fault = "bad" // the request is invalid
)

// End is the message that ends a channel.
type End struct {
	Code        int    `json:"code"` // -1 for a signal
	Signal      int    `json:"signal,omitempty"`
	TimedOut    bool   `json:"timedOut,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
	OOM         bool   `json:"oom,omitempty"`
	Survivors   int    `json:"survivors,omitempty"`
	Dir         string `json:"dir,omitempty"` // directory of the session afterwards, "" if the command ended before it was written
	Fault       Fault  `json:"fault,omitempty"`
	Text        string `json:"text,omitempty"` // text of the fault
	Jobs        []Job  `json:"jobs,omitempty"`
	Clients     int    `json:"clients,omitempty"` // for OpJobs: number of connections to the helper
}

// Job is a background command.
type Job struct {
	ID       string    `json:"id"`
	Command  string    `json:"command"`
	PID      int       `json:"pid"` // process id inside the container
	Started  time.Time `json:"started"`
	Running  bool      `json:"running"`
	Code     int       `json:"code"`   // exit code after the end; for a signal, 128+n in package sandbox and -1 in messages
	Signal   int       `json:"signal"` // signal that ended it, 0 for none
	TimedOut bool      `json:"timedOut"`
	Ended    time.Time `json:"ended,omitzero"`
	Output   int64     `json:"output"`  // bytes written so far
	Dropped  int64     `json:"dropped"` // bytes at the beginning that are not kept any more
}
