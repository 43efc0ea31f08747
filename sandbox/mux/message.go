package mux

import "time"

// Where both sides expect what.
const (
	RunDir   = "/run/hinit"       // a directory of the host in the container, for the socket
	ToolsDir = "/run/hinit-tools" // another, read-only, with the program inside
	Socket   = "sock-v3"          // the socket's name; programs that speak another version have another
)

// Hello is what each side says first.
type Hello struct {
	Version int    `json:"version"`
	ID      string `json:"id,omitempty"`      // of the program inside: what it was started with
	Refused string `json:"refused,omitempty"` // why the connection ends now
	Code    int    `json:"code,omitempty"`    // an exit code for that
}

// Op is what a channel is for.
type Op string

// The operations.
const (
	OpRun     Op = "run"     // a command in the foreground: it ends with the connection
	OpStart   Op = "start"   // a command in the background: ends the channel when it has begun, with Jobs
	OpJobs    Op = "jobs"    //
	OpOutput  Op = "output"  // of a background command, as KindOutput
	OpKill    Op = "kill"    // ends a background command, and the channel when nothing of it is left
	OpBury    Op = "bury"    // kills what is left of commands that another program inside began before it died
	OpPutTree Op = "puttree" // KindInput, a tar archive, becomes files
	OpGetTree Op = "gettree" // files become KindOutput
)

// Open begins a channel.
type Open struct {
	Op      Op       `json:"op"`
	Argv    []string `json:"argv,omitempty"`
	Command string   `json:"command,omitempty"` // for the shell, with the state of the session
	Session string   `json:"session,omitempty"`
	Shell   string   `json:"shell,omitempty"` // "" is bash, or sh
	Begin   string   `json:"begin,omitempty"` // where a session without a directory begins

	Env     map[string]string `json:"env,omitempty"`
	Forward map[string]string `json:"forward,omitempty"` // what a new session begins with, besides
	Dir     string            `json:"dir,omitempty"`

	Input   bool   `json:"input,omitempty"` // standard input follows
	Apart   bool   `json:"apart,omitempty"` // standard error is a stream of its own
	TTY     bool   `json:"tty,omitempty"`
	Columns uint16 `json:"columns,omitempty"`
	Rows    uint16 `json:"rows,omitempty"`
	Timeout int64  `json:"timeout,omitempty"` // milliseconds, 0 for none
	Grace   int64  `json:"grace,omitempty"`   // milliseconds
	Job     string `json:"job,omitempty"`
	Follow  bool   `json:"follow,omitempty"`
	Path    string `json:"path,omitempty"`
	PID     int    `json:"pid,omitempty"` // of the command to reap
}

// TerminalSize is the size of a terminal.
type TerminalSize struct{ Columns, Rows uint16 }

// Fault is why an operation failed.
type Fault string

// The faults.
const (
	NoFault   Fault = ""
	NotBegun  Fault = "not begun" // the command was not started; Code is what a shell would give
	NoJob     Fault = "no job"
	FileFault Fault = "file"
	BadOpen   Fault = "bad" // the request makes no sense
)

// End ends a channel.
type End struct {
	Code        int    `json:"code"` // -1 for a signal
	Signal      int    `json:"signal,omitempty"`
	TimedOut    bool   `json:"timedOut,omitempty"`
	Interrupted bool   `json:"interrupted,omitempty"`
	OOM         bool   `json:"oom,omitempty"`
	Survivors   int    `json:"survivors,omitempty"`
	Dir         string `json:"dir,omitempty"` // of the session afterwards, "" when the command left before that was written
	Fault       Fault  `json:"fault,omitempty"`
	Text        string `json:"text,omitempty"` // of the fault
	Jobs        []Job  `json:"jobs,omitempty"`
	Clients     int    `json:"clients,omitempty"` // of OpJobs: connections to the program inside
}

// Job is a background command.
type Job struct {
	ID       string    `json:"id"`
	Command  string    `json:"command"`
	PID      int       `json:"pid"` // inside the container
	Started  time.Time `json:"started"`
	Running  bool      `json:"running"`
	Code     int       `json:"code"`   // once it has ended; 128+n for a signal, as package sandbox has it, and -1 on the wire
	Signal   int       `json:"signal"` // that ended it, 0 for none
	TimedOut bool      `json:"timedOut"`
	Ended    time.Time `json:"ended,omitzero"`
	Output   int64     `json:"output"`  // bytes written so far
	Dropped  int64     `json:"dropped"` // of these, how many of the oldest are not kept any more
}
