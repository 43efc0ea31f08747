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

// The boot program works on the data volume for PID 1. So PID 1 contains no code for this work, and never waits for the disk.
// The program does a part of the boot, repairs owners, compresses rotated logs and examines the volume. It is hinit-tools under
// the name BootProgramName. PID 1 writes a [Job] to its standard input, and reads a stream of [Message] values from its standard
// output. PID 1 replies to some messages with an [Answer].

const (
	// BootProgram is the file of the boot program, in the directory of hinit.
	BootProgram = "hinit-tools"
	// BootProgramName is the argv[0] with which PID 1 starts the boot program.
	BootProgramName = "hinit-boot"

	// SeedFile is a file of the image. It has the contents of all files in a data directory after a first boot, one after the
	// other. A second file, with the suffix kept.IndexSuffix, lists their names.
	SeedFile = "/usr/share/hinit/home"
	// AgentInstallDir is the directory of the agent's installation in its image.
	AgentInstallDir = "/opt/hermes"
)

// Job is the work of the boot program. If one of FillFromImage, ChangeOwners, Repair, Examine, CompressLogs and Gateways is
// set, the program does only that. Otherwise it does the boot steps that only some containers need before the first service.
// [Prepare] does the steps that all containers need.
type Job struct {
	Options           Options
	AgentUser         account.User
	UserInPasswd      bool   `json:"Known"` // /etc/passwd has AgentUser
	Version           string // version of hinit; after an update, all hooks run
	Hooks             []Hook
	ServicesOnly      bool `json:"Plain"`   // run only the hooks, because there is no agent and no data volume
	EndOnFailedHook   bool `json:"Strict"`  // if a hook fails, the boot ends
	EndOnFailedScript bool `json:"Scripts"` // if a script of the image fails, the boot ends
	// FillFromImage: only fill an empty data directory from the image, see SeedFile.
	FillFromImage bool `json:"Plant"`
	ChangeOwners  bool // only change the owners of profiles' homes, see [Tenants]
	// StartingProfile is the profile that is about to start. ChangeOwners then changes only its home, because the gateways of
	// other profiles may be running. If StartingProfile is "", no gateway runs yet, and ChangeOwners may change all homes.
	StartingProfile string `json:"Starting"`
	// Repair: only repair the owners of the files that the boot has left to the background.
	Repair          bool
	Examine         bool               // only examine the data volume, for hinit doctor
	ProfileMarker   string             `json:"Marker"`   // value of profiles.marker in hinit.yaml, for Examine
	MaxProfiles     int                `json:"Profiles"` // value of profiles.max in hinit.yaml, for Examine
	CompressLogs    []gzipped.Archives // only compress these rotated logs, if they are older than MinLogAge
	MinLogAge       time.Duration
	Gateways        []Gateway `json:"Weigh"`   // only measure these gateways, see MeasureKind; earlier versions use the JSON name
	MeasureKind     string    `json:"Measure"` // quantity to measure: MeasureDisk or another of these constants
	FilledFromImage bool      `json:"Planted"` // the repair also syncs the files that the boot has copied to an empty data directory
}

// IsNeeded reports whether the boot program has work before the first service. That is so in the agent's image, and if hooks,
// scripts or variables ask for work. IsNeeded ignores files on the data volume. It blocks on the root file system.
func (j Job) IsNeeded() bool {
	if len(j.Hooks) > 0 || j.Options.ImageFillsHome {
		return true
	}
	for _, name := range []string{
		"HERMES_AUTH_HOME", "HERMES_AUTH_JSON_BOOTSTRAP", "HERMES_AUTH_JSON_REBOOTSTRAP", "HERMES_GATEWAY_BOOTSTRAP_STATE", "PLAYWRIGHT_BROWSERS_PATH",
	} {
		if _, set := j.Options.Env(name); set {
			return true
		}
	}
	_, err := os.Stat(AgentInstallDir)
	scripts, _ := os.ReadDir(ContInitDir)
	return err == nil || len(scripts) > 0
}

// HasSeed reports whether the image has files for an empty data directory. It blocks on the root file system.
func (j Job) HasSeed() bool {
	_, err := os.Stat(SeedFile)
	return err == nil && !j.Options.ImageFillsHome
}

// ContInitDir has the user's own scripts, which run as root at the boot.
const ContInitDir = "/etc/cont-init.d"

// Message is a message of the boot program to PID 1. Exactly one field is set.
type Message struct {
	LogLine       *LogLine          `json:"Line,omitempty"`   // message for the container log
	AgentLogLine  *LogLine          `json:"Agents,omitempty"` // message for the container log that an agent can cause
	Report        *Report           `json:",omitempty"`       // the volume is ready; PID 1 answers with Answer.Env
	HookCount     *int              `json:"Begin,omitempty"`  // number of hooks that follow
	Hook          *Hook             `json:",omitempty"`       // PID 1 must run this hook, and answers with its number and exit code
	Steps         []client.BootStep `json:",omitempty"`       // result of each hook, after all hooks have ended
	Repair        *client.Repair    `json:",omitempty"`       // progress of the repair
	RepairSummary string            `json:"Result,omitempty"` // summary of the repair, in words
	Findings      client.Findings   `json:"Found,omitempty"`  // results of one check of Examine

	Examining *Examining `json:",omitempty"` // the next check of Examine, or the next measurement

	CompressedLogs []gzipped.Result `json:"Packed,omitempty"`  // results of CompressLogs, one for each log
	Measurements   []Measurement    `json:"Weighed,omitempty"` // results of the measurement
	Done           *Done            `json:",omitempty"`        // the program is about to end
}

// Examining names the check that begins now. Silent is the finding if the check never ends.
type Examining struct{ Check, Silent string }

// Done means that the boot program has finished. Error says why the container must stop; "" if the container must not stop.
type Done struct{ Error string }

// Answer is a reply of PID 1 to the boot program.
type Answer struct {
	Report       *Report  // result of [Prepare], which the boot program needs before it begins
	Env          []string // environment of programs that run as the agent
	HookNumber   int      `json:"Hook"` // the hook that has ended
	HookExitCode int      `json:"Code"` // exit code of the hook, 128+n after signal n
	HookError    string   `json:"Err"`  // why the hook has no exit code
}

// Report is the result of preparing the data volume.
type Report struct {
	// Phases lists the executed phases, with duration and error.
	Phases   []client.BootStep
	Warnings []string

	// Env has variables for all programs that start later. Home is their HOME, or "" for no change.
	Env  map[string]string
	Home string

	// RepairEverything makes the repair examine all of the agent's directories. It is set if the data directory belonged to
	// another user, or after an interrupted repair.
	RepairEverything bool `json:"Full"`

	// FilledFromImage means that the data directory was empty, and was filled from the image.
	FilledFromImage bool `json:"Planted"`

	HomeIsLink bool `json:"Linked"` // the data directory is a symbolic link, so root changes nothing in it
	ReadOnly   bool // the data volume is read-only, and a message has reported this
	// HasSecrets means that the data directory has files for the boot program, even without other work.
	HasSecrets bool

	// Unusable means that the data volume did not answer, or does not exist. Only services that don't need the volume can
	// start.
	Unusable bool
}

// FirstFailure returns the first failed phase, and true. It ignores the phases named in but. Without a failed phase, the second
// result is false.
func (r Report) FirstFailure(but ...string) (client.BootStep, bool) {
	for _, p := range r.Phases {
		if p.Error != "" && !slices.Contains(but, p.Name) {
			return p, true
		}
	}
	return client.BootStep{}, false
}

// Hook is a command that the boot runs once.
type Hook struct {
	Name     string // name in messages and in the timeline of the boot
	Number   int    // position among the hooks of this boot; the first is 1
	Command  []string
	User     string // user that runs the hook; "" for the agent's user
	Timeout  time.Duration
	Required bool
	IfExists string // run the hook only if this file exists; "" for always
	ContInit bool   // the hook is a script of /etc/cont-init.d, whose messages have another text

	// Inputs are paths and patterns of the files that the hook reads and writes, see config.Hook. If none has changed since the
	// hook's last success, the boot skips the hook. If Inputs is nil, the hook runs at every boot. Only hooks of the agent's
	// user have Inputs.
	Inputs []string
}

// ConfiguredHooks returns the hooks of boot.hooks in hinit.yaml, which include the image's hooks.
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

// hookName returns the file name of the script if the command is an interpreter with a script, otherwise the name of the
// program.
func hookName(command []string) string {
	if len(command) > 1 && filepath.IsAbs(command[1]) && filepath.Ext(command[1]) != "" {
		return filepath.Base(command[1])
	}
	return filepath.Base(command[0])
}

// Gateway is a gateway to measure, see [Job].Measure. Main is the PID of its main process; 0 for none. Stopped means that hinit
// has stopped the gateway because of its disk quota. Warn and Stop are the limits of the quota in bytes; 0 for none.
type Gateway struct {
	Service, Profile  string
	MainPID           int    `json:"Main,omitzero"`
	RunNumber         uint64 `json:"Run,omitzero"`
	Isolated, Stopped bool   `json:",omitzero"`
	Warn, Stop        uint64 `json:",omitzero"`
	CPUWeight         int    `json:"Weight,omitzero"` // CPU weight of the profile (cpu.weight); 0 for the default
	Nice              int    `json:",omitzero"`       // nice value that the configuration gives to the gateway, relative to hinit
	HasCPUAffinity    bool   `json:"Pinned,omitzero"` // the configuration chooses the gateway's processors
	MemoryRank        int    `json:"Rank,omitzero"`   // gateways of a higher rank get memory first
}

// Measurement is the result for one gateway. Note is a text for the status. Hold says why the gateway must not run, and Restart
// why it must restart; "" if it may keep running. Bytes is the memory in the last record, or with MeasureSharedMemory the shared
// memory, in bytes. Run is the number of the measured run.
type Measurement struct {
	Service             string
	Note, Hold, Restart string `json:",omitzero"`
	Bytes, Run          uint64 `json:",omitzero"`
}

// Values of [Job].Measure: measurements and actions of the boot program.
const (
	MeasureDisk         = ""       // disk use of profiles
	EnforceShares       = "share"  // keep profiles from taking the processors and ports of others
	MeasureRecordMemory = "record" // record the memory of the gateways, for the next boot
	MeasureAdmission    = "admit"  // find gateways without enough memory for their start

	MeasureSharedMemory = "files" // shared memory of services, such as deleted files that they have open
)
