package mux

import "time"

// Paths inside the container that both sides use.
const (
	RunDir   = "/run/hinit"       // a mounted directory of the host, for the socket
	ToolsDir = "/run/hinit-tools" // a mounted directory of the host, read-only, with the helper
	Socket   = "sock-v4"          // the name of the socket; it contains the protocol version
)

// Hello is the first message of each side.
type Hello struct {
	Version int    `json:"version"`
	ID      string `json:"id,omitempty"` // the id with which the helper was started
}

// Op is the operation that a client requests when it opens a channel.
type Op string

// The operations that a client can request.
const (
	OpRun           Op = "run"     // run a foreground command, which ends at the latest with the connection
	OpStart         Op = "start"   // start a background command; the channel ends with Jobs when it has been started
	OpJobs          Op = "jobs"    // list the background commands
	OpOutput        Op = "output"  // get the output of a background command, as KindOutput
	OpKill          Op = "kill"    // end a background command; the channel ends when none of its processes is left
	OpKillLeftovers Op = "bury"    // kill the remaining processes of a command whose helper has died
	OpPutTree       Op = "puttree" // create files from KindInput, a tar archive
	OpGetTree       Op = "gettree" // send files as KindOutput, a tar archive
)

// Open is the request that opens a channel.
type Open struct {
	Op      Op       `json:"op"`
	Argv    []string `json:"argv,omitempty"`
	Command string   `json:"command,omitempty"` // a command for the shell, run with the state of the session
	Session string   `json:"session,omitempty"`
	Shell   string   `json:"shell,omitempty"` // "" for bash, or sh if there is no bash
	Begin   string   `json:"begin,omitempty"` // the directory in which a new session starts

	Env     map[string]string `json:"env,omitempty"`
	Forward map[string]string `json:"forward,omitempty"` // additional variables at the start of a session
	Dir     string            `json:"dir,omitempty"`

	Input       bool   `json:"input,omitempty"` // standard input will be sent
	SplitErrors bool   `json:"apart,omitempty"` // send standard error as a separate stream
	TTY         bool   `json:"tty,omitempty"`
	Columns     uint16 `json:"columns,omitempty"`
	Rows        uint16 `json:"rows,omitempty"`
	Timeout     int64  `json:"timeout,omitempty"` // time limit in milliseconds, 0 for none
	Grace       int64  `json:"grace,omitempty"`   // time between TERM and KILL in milliseconds
	Job         string `json:"job,omitempty"`
	Follow      bool   `json:"follow,omitempty"`
	Path        string `json:"path,omitempty"`
	PID         int    `json:"pid,omitempty"` // the command whose remaining processes OpKillLeftovers kills
}

// TerminalSize is the size of a terminal.
type TerminalSize struct{ Columns, Rows uint16 }

// Fault says why an operation failed.
type Fault string

// The reasons why an operation failed.
const (
	NoFault   Fault = ""
	NotBegun  Fault = "not begun" // the command was not started; Code is the exit code that a shell would return
	NoJob     Fault = "no job"
	FileFault Fault = "file"
	BadOpen   Fault = "bad" // the request is invalid
)

// End is the message that ends a channel.
type End struct {
	Code        int    `json:"code"` // the exit code, -1 after a signal
	Signal      int    `json:"signal,omitempty"`
	TimedOut    bool   `json:"timedOut,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
	OOM         bool   `json:"oom,omitempty"`
	Survivors   int    `json:"survivors,omitempty"`
	Dir         string `json:"dir,omitempty"` // the session's directory after the command, "" if unknown
	Fault       Fault  `json:"fault,omitempty"`
	Text        string `json:"text,omitempty"` // describes the Fault
	Jobs        []Job  `json:"jobs,omitempty"`
	Clients     int    `json:"clients,omitempty"` // for OpJobs: the number of connections to the helper
}

// Job is a background command.
type Job struct {
	ID       string    `json:"id"`
	Command  string    `json:"command"`
	PID      int       `json:"pid"` // process id inside the container
	Started  time.Time `json:"started"`
	Running  bool      `json:"running"`
	Code     int       `json:"code"`   // the exit code; after a signal, 128+n in package sandbox and -1 in messages
	Signal   int       `json:"signal"` // the signal that ended the command, 0 for none
	TimedOut bool      `json:"timedOut"`
	Ended    time.Time `json:"ended,omitzero"`
	Output   int64     `json:"output"`  // number of bytes that the command has written so far
	Dropped  int64     `json:"dropped"` // number of bytes at the beginning that are no longer kept
}
