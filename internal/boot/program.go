package boot

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/config"
	"hinit/logrotate/gzipped"
)

// The boot program works on the data volume on behalf of PID 1. So PID 1 does not contain the code for this work, and never waits
// for the disk. The program does a part of the boot, repairs owners, compresses rotated logs and examines the volume. It is
// hinit-tools, started under the name ProgramName. PID 1 writes a [Job] to its standard input, and reads a stream of [Message]
// values from its standard output. PID 1 replies to some of the messages with an [Answer].

const (
	// Program is the file name of the boot program, which is in the same directory as hinit.
	Program = "hinit-tools"
	// ProgramName is the argv[0] with which PID 1 starts the boot program.
	ProgramName = "hinit-boot"

	// Seed is a file that the build of the image creates. It holds the contents of all files of the data directory after a first
	// boot, one after the other. A second file, with the suffix kept.IndexSuffix, lists their names.
	Seed = "/usr/share/hinit/home"
	// Install is the directory of the agent's installation in its image.
	Install = "/opt/hermes"
)

// Job tells the boot program what to do. Normally the program does the part of the boot that only some containers need, before
// the first service starts; [Prepare] does the other part. If FillFromImage, ChangeOwners, Repair, Examine, CompressLogs or
// Gateways is set, the program does only that work.
type Job struct {
	Options   Options
	AgentUser account.User
	Known     bool   // /etc/passwd has AgentUser
	Version   string // version of hinit; after an update all hooks run
	Hooks     []Hook
	Plain     bool // no agent and no data volume: run only the hooks
	Strict    bool // a failed hook ends the boot
	Scripts   bool // a failed script of the image ends the boot
	// FillFromImage: only fill an empty data directory from the image.
	FillFromImage bool `json:"Plant"`
	ChangeOwners  bool // only change the owners of profiles' homes, see [Tenants]
	// Starting is the only profile whose home ChangeOwners may change, because other profiles may be running. It is ""
	// before the first start: then all homes may be changed.
	Starting string
	// Repair: only do the work that the boot has left for the background.
	Repair          bool
	Examine         bool               // only examine the data volume, for hinit doctor
	Marker          string             // value of the key profiles.marker, for Examine
	Profiles        int                // value of the key profiles.max, for Examine
	CompressLogs    []gzipped.Archives // only compress these rotated logs, if they are older than Young
	Young           time.Duration
	Gateways        []Gateway `json:"Weigh"` // only measure these gateways, see Measure; earlier hinit versions use this JSON name
	Measure         string    // subject of the measurement: one of the Measure constants
	FilledFromImage bool      `json:"Planted"` // the repair also syncs the files that the boot has copied to an empty data directory
}

// IsNeeded reports whether the boot program has work before the first service. It does in the agent's image, and if hooks,
// scripts or environment variables need it. Files on the data volume do not matter. IsNeeded blocks on the root file system.
func (j Job) IsNeeded() bool {
	if len(j.Hooks) > 0 || j.Options.Seeds {
		return true
	}
	for _, name := range []string{
		"HERMES_AUTH_HOME", "HERMES_AUTH_JSON_BOOTSTRAP", "HERMES_AUTH_JSON_REBOOTSTRAP", "HERMES_GATEWAY_BOOTSTRAP_STATE", "PLAYWRIGHT_BROWSERS_PATH",
	} {
		if _, set := j.Options.Env(name); set {
			return true
		}
	}
	_, err := os.Stat(Install)
	scripts, _ := os.ReadDir(ContInitDir)
	return err == nil || len(scripts) > 0
}

// HasSeed reports whether the image has files with which to fill an empty data directory. It blocks on the root file system.
func (j Job) HasSeed() bool {
	_, err := os.Stat(Seed)
	return err == nil && !j.Options.Seeds
}

// ContInitDir holds the user's own scripts, which run as root at boot.
const ContInitDir = "/etc/cont-init.d"

// Message is a message from the boot program to PID 1. Exactly one field is set.
type Message struct {
	Line   *Line             `json:",omitempty"` // a line for the container's log
	Agents *Line             `json:",omitempty"` // a line for the log that an agent can cause
	Report *Report           `json:",omitempty"` // the volume is ready; PID 1 answers with Answer.Env
	Begin  *int              `json:",omitempty"` // number of hooks that follow
	Hook   *Hook             `json:",omitempty"` // a hook for PID 1 to run; PID 1 answers with the hook's number and exit code
	Steps  []client.BootStep `json:",omitempty"` // all hooks have ended
	Repair *client.Repair    `json:",omitempty"` // progress of the repair
	Result string            `json:",omitempty"` // summary of the repair
	Found  client.Findings   `json:",omitempty"` // findings of a check of Examine

	Examining *Examining `json:",omitempty"` // a check of Examine, or the measurement of the profile Check, is about to begin

	Packed   []gzipped.Result `json:",omitempty"`        // result of CompressLogs for each log
	Measured []Measurement    `json:"Weighed,omitempty"` // result of Measure for each gateway
	Done     *Done            `json:",omitempty"`        // the program is about to end
}

// Examining names the check that is running. Silent is the finding to report if the check never ends.
type Examining struct{ Check, Silent string }

// Done says that the boot program has finished its work. Error is the reason why the container must stop, or "" if it need not.
type Done struct{ Error string }

// Answer is a reply from PID 1 to a message from the boot program.
type Answer struct {
	Report *Report  // the report of [Prepare]; the boot program waits for it before it begins
	Env    []string // environment for programs that run as the agent
	Hook   int      // number of the hook that has ended
	Code   int      // exit code of the hook, 128+n after signal n
	Err    string   // why the hook has no exit code
}

// Report is the result of the preparation of the data volume.
type Report struct {
	// Phases lists the phases that have run, with their duration and error.
	Phases   []client.BootStep
	Warnings []string // texts of the messages that are warnings

	// Env holds environment variables to set for all programs that start later. Home is the HOME to set for these programs,
	// or "" for no change.
	Env  map[string]string
	Home string

	// Full tells the repair to check all of the agent's directories. It is set if the data directory belonged to another user,
	// or if an earlier repair was interrupted.
	Full bool

	// FilledFromImage is true if the data directory was empty and was filled from the image.
	FilledFromImage bool `json:"Planted"`

	Linked   bool // the data directory is a symbolic link, so root changes nothing in it
	ReadOnly bool // the data volume is read-only, and a message has said so
	// HasSecrets is true if the data directory has files that the boot program must check, even if it has nothing else to do.
	HasSecrets bool

	// Unusable is true if the data volume did not answer, or does not exist. Then only services that don't need the volume
	// can start.
	Unusable bool
}

// Failed returns the first failed phase. The argument but lists names of phases to ignore. The second result is false if no other
// phase has failed.
func (r Report) Failed(but ...string) (client.BootStep, bool) {
	for _, p := range r.Phases {
		if p.Error != "" && !slices.Contains(but, p.Name) {
			return p, true
		}
	}
	return client.BootStep{}, false
}

// Hook is a command that runs once at boot.
type Hook struct {
	Name     string // name in messages and in the timeline of the boot
	Number   int    // position among the hooks of this boot, starting at 1
	Command  []string
	User     string // user that runs the hook; "" for the agent's user
	Timeout  time.Duration
	Required bool
	IfExists string // run the hook only if this file exists; "" for always
	ContInit bool   // the hook is a script of /etc/cont-init.d, for which other messages are printed

	// Inputs are paths and glob patterns of the files that the hook reads and writes, see config.Hook. If none of them has
	// changed since the hook's last success, the hook is skipped. If Inputs is nil, the hook runs at every boot. Inputs is used
	// only for hooks that run as the agent's user.
	Inputs []string
}

// ConfiguredHooks returns the hooks in boot.hooks of the configuration, which include the image's own hooks.
func ConfiguredHooks(cfg *config.Config) []Hook {
	hooks := make([]Hook, len(cfg.Boot.Hooks))
	for i, h := range cfg.Boot.Hooks {
		hooks[i] = Hook{Name: hookName(h.Command), Command: h.Command, User: h.User, Timeout: h.Timeout, Required: h.Required, IfExists: h.IfExists}
		if h.User == cfg.Agent.User {
			hooks[i].Inputs = h.Inputs
		}
	}
	return hooks
}

// hookName returns the file name of the script if the command is an interpreter with a script. For other commands it returns
// the file name of the program.
func hookName(command []string) string {
	if len(command) > 1 && filepath.IsAbs(command[1]) && filepath.Ext(command[1]) != "" {
		return filepath.Base(command[1])
	}
	return filepath.Base(command[0])
}

// Gateway describes a gateway to measure, see [Job].Measure. Main is the PID of its main process, or 0 for none. Stopped is
// true if the gateway was stopped because of its disk quota. Warn and Stop are the limits of this quota in bytes, or 0 for
// none.
type Gateway struct {
	Service, Profile  string
	Main              int
	Run               uint64
	Isolated, Stopped bool
	Warn, Stop        uint64
	Weight            int  // CPU weight of the profile (cpu.weight); 0 for the default
	Nice              int  // nice value of the gateway by the configuration, counted from hinit's own
	Pinned            bool // the configuration says on which processors the gateway runs
	Rank              int  // gateways with a higher rank get memory first
}

// Measurement is the result for one gateway. Note is a text for the gateway's status. Hold says why the gateway must not
// run, and Restart why it must be restarted; both are "" if there is no reason. Bytes is the gateway's memory use in the
// last record, or the result of FilesInMemory. Run is the number of the run that was measured.
type Measurement struct {
	Service, Note, Hold, Restart string
	Bytes, Run                   uint64
}

// The values of [Job].Measure: the subject of the measurement of the gateways.
const (
	MeasureDisk  = ""       // measure the disk use of profiles
	MeasureShare = "share"  // keep profiles from using the processors and ports of others
	RecordMemory = "record" // record how much memory the gateways use, for the next boot
	AdmitMemory  = "admit"  // find the gateways for which there is not enough memory, before they start

	FilesInMemory = "files" // measure the shared memory of services, such as deleted files that they hold open
)
