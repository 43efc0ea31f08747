package mux

import (
	"encoding/json"
	"slices"
	"time"
)

// Paths inside a container. Package inside listens there, and package sandbox mounts the directories.
const (
	RunDir   = "/run/hinit"       // mount point of a directory on the host, for the socket
	ToolsDir = "/run/hinit-tools" // mount point of the directory with the helper, read-only
	Socket   = "sock-v4"          // name of the socket, with the protocol version
)

// Hello is the first message of each side. It makes sure that both sides speak the same version, and that the client has
// reached the right container.
type Hello struct {
	Version int    `json:"version"`
	ID      string `json:"id,omitempty"` // ID of the container for which the helper was started.
}

// Op is the operation that a client requests when it opens a channel.
type Op string

// The operations that a client can request from the helper in a sandbox.
const (
	OpRun           Op = "run"     // Run a foreground command, which ends at the latest with the connection.
	OpStart         Op = "start"   // Start a background command; the End message describes it in Jobs.
	OpJobs          Op = "jobs"    // list the background commands
	OpOutput        Op = "output"  // get the output of a background command, as KindOutput
	OpKill          Op = "kill"    // end a background command; the channel ends when all its processes have ended
	OpKillLeftovers Op = "bury"    // Kill the remaining processes of a command whose helper has died.
	OpPutTree       Op = "puttree" // create files from KindInput, a tar archive
	OpGetTree       Op = "gettree" // send files as KindOutput, a tar archive
)

// Open is the request that opens a channel. Each Op uses only some of the fields.
type Open struct {
	Op       Op       `json:"op"`
	Argv     []string `json:"argv,omitempty"`
	Command  string   `json:"command,omitempty"` // line for the shell, run in the session
	Session  string   `json:"session,omitempty"` // name of the session; its commands share directory and variables
	Shell    string   `json:"shell,omitempty"`   // "" for bash, or sh if there is no bash
	FirstDir string   `json:"begin,omitempty"`   // directory in which a new session starts

	Env     map[string]string `json:"env,omitempty"`     // additional variables for this command
	Forward map[string]string `json:"forward,omitempty"` // variables for the start of a session
	Dir     string            `json:"dir,omitempty"`     // working directory; "" for the session's or the container's

	Input       bool   `json:"input,omitempty"` // Whether standard input will be sent.
	SplitErrors bool   `json:"apart,omitempty"` // Send standard error as a separate stream instead of merging it into standard output.
	TTY         bool   `json:"tty,omitempty"`
	Columns     uint16 `json:"columns,omitempty"`
	Rows        uint16 `json:"rows,omitempty"`
	Timeout     int64  `json:"timeout,omitempty"` // time limit in milliseconds, 0 for none
	Grace       int64  `json:"grace,omitempty"`   // time between TERM and KILL in milliseconds
	Job         string `json:"job,omitempty"`     // id of the background command
	Follow      bool   `json:"follow,omitempty"`  // Whether OpOutput continues until the command ends.
	Path        string `json:"path,omitempty"`    // path for OpPutTree and OpGetTree
	PID         int    `json:"pid,omitempty"`     // Command whose remaining processes OpKillLeftovers kills.
}

// TerminalSize is the size of a terminal.
type TerminalSize struct{ Columns, Rows uint16 }

// Fault says why an operation failed.
type Fault string

// The values of Fault.
const (
	NoFault  Fault = ""
	NotBegun Fault = "not begun" // The command was not started. Code is the exit code with which a shell reports that.
	NoJob    Fault = "no job"
	Refused  Fault = "bad" // The request is invalid, or a transfer has failed.
)

// End is the message that ends a channel: how its command ended, or why the operation failed.
type End struct {
	Code        int    `json:"code"` // exit code; -1 if a signal ended the command
	Signal      int    `json:"signal,omitempty"`
	TimedOut    bool   `json:"timedOut,omitempty"`    // Whether the time limit ended the command.
	Interrupted bool   `json:"interrupted,omitempty"` // Whether the client ended the command.
	OOM         bool   `json:"oom,omitempty"`         // Whether the kernel killed a process of the command for lack of memory.
	Survivors   int    `json:"survivors,omitempty"`   // number of processes that survived SIGKILL
	Dir         string `json:"dir,omitempty"`         // the session's directory after the command, "" if unknown
	Fault       Fault  `json:"fault,omitempty"`
	Text        string `json:"text,omitempty"` // description of the Fault
	Jobs        Jobs   `json:"jobs,omitempty"`
	Clients     int    `json:"clients,omitempty"` // Number of connections to the helper, only in the answer to OpJobs.
}

// MaxJobs is how many background commands a helper keeps.
const MaxJobs = 64

// Jobs is a list of background commands.
type Jobs []Job

// UnmarshalJSON implements json.Unmarshaler. It drops all commands after the first MaxJobs, because a hostile helper may
// send a long list. In memory, a list in JSON can take fifty times its size.
func (j *Jobs) UnmarshalJSON(data []byte) error {
	var list [MaxJobs]Job
	err := json.Unmarshal(data, &list)
	*j = slices.DeleteFunc(list[:], func(job Job) bool { return job.ID == "" })
	return err
}

// Job is a background command.
type Job struct {
	ID       string    `json:"id"`
	Command  string    `json:"command"`
	PID      int       `json:"pid"` // process id inside the container
	Started  time.Time `json:"started"`
	Running  bool      `json:"running"`
	Code     int       `json:"code"`   // exit code; after a signal, -1 in messages and 128+n in package sandbox
	Signal   int       `json:"signal"` // the signal that ended the command, 0 for none
	TimedOut bool      `json:"timedOut"`
	Ended    time.Time `json:"ended,omitzero"`
	Output   int64     `json:"output"`  // number of bytes that the command has written so far
	Dropped  int64     `json:"dropped"` // number of bytes at the beginning of the output that were dropped
}
