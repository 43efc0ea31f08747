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

// The boot program works on the data volume, so that PID 1 neither has the code nor waits for that disk. It does work of the
// boot, repairs owners, compresses the archives of logs and examines the volume. It is hinit-tools under the name ProgramName.
// PID 1 starts it, writes a [Job] to its standard input, and reads messages from its standard output. PID 1 answers some of the
// messages with an [Answer].

const (
	// Program is the file of the boot program, which is in the same directory as hinit.
	Program = "hinit-tools"
	// ProgramName is the argv[0] of the boot program.
	ProgramName = "hinit-boot"

	// Seed is the file that the build of the image saves after a first boot with an empty data directory. It has the content of
	// all files, one after the other. Their names are in a second file, with the suffix kept.Index.
	Seed = "/usr/share/hinit/home"
	// Install is the agent's installation in its image.
	Install = "/opt/hermes"
)

// Job says what the boot program has to do. Normally that is the steps before the first service that not every container needs;
// [Prepare] does the others. With Plant it only fills an empty data directory, with Repair it does the later work in the
// background.
type Job struct {
	Options   Options
	AgentUser account.User
	Known     bool   // /etc/passwd has the agent's user
	Version   string // version of hinit: a new version runs all hooks
	Hooks     []Hook
	Plain     bool // there is no agent and no data volume; only the hooks run
	Strict    bool // the first failed hook ends the boot
	Scripts   bool // the first failed script of the image ends the boot
	Plant     bool
	Move      bool   // only change the owners of homes, see [Tenants]
	Starting  string // of Move: the only profile whose home may change, because others may run; "" for all, before the first start
	Repair    bool
	Examine   bool               // only examine the data volume for hinit doctor
	Marker    string             // profiles.marker, for Examine
	Profiles  int                // profiles.max, for Examine
	Pack      []gzipped.Archives // only compress these archives of logs, if they are older than Young
	Young     time.Duration
	Gateways  []Gateway `json:"Weigh"` // only measure these, see Measure; earlier versions of hinit use this name
	Measure   string    // one of the Measure constants
	Planted   bool      // the repair also syncs the files that the boot copied to an empty data directory
}

// Wanted reports whether the boot program has work before the first service. That is so in the image of the agent, and if hooks,
// scripts or variables need the program. Files on the data volume do not count. It blocks on the root file system.
func (j Job) Wanted() bool {
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

// HasSeed reports whether the image has files for an empty data directory. It blocks on the root file system.
func (j Job) HasSeed() bool {
	_, err := os.Stat(Seed)
	return err == nil && !j.Options.Seeds
}

// ContInitDir holds users' scripts that run as root at boot.
const ContInitDir = "/etc/cont-init.d"

// Message is a message of the boot program. One field is set.
type Message struct {
	Line   *Line             `json:",omitempty"` // for the container's log
	Agents *Line             `json:",omitempty"` // likewise, but an agent can cause it
	Report *Report           `json:",omitempty"` // the volume is ready; PID 1 answers with Env
	Begin  *int              `json:",omitempty"` // the number of hooks that follow
	Hook   *Hook             `json:",omitempty"` // PID 1 must run the hook; it answers with the hook's number and code
	Steps  []client.BootStep `json:",omitempty"` // all hooks have ended
	Repair *client.Repair    `json:",omitempty"` // progress of the repair
	Result string            `json:",omitempty"` // summary of the repair
	Found  client.Findings   `json:",omitempty"` // findings of a check of Examine

	Examining *Examining `json:",omitempty"` // a check of Examine begins

	Packed   []gzipped.Result `json:",omitempty"`        // result of Pack for each log
	Measured []Measurement    `json:"Weighed,omitempty"` // result of Measure for each gateway
	Done     *Done            `json:",omitempty"`        // the program ends
}

// Examining names the current check of an examination. Silent is the finding if the check does not end.
type Examining struct{ Check, Silent string }

// Done says that the boot program has finished. Error is why the container must stop, "" for none.
type Done struct{ Error string }

// Answer is an answer of PID 1 to a message.
type Answer struct {
	Report *Report  // the report of [Prepare], which makes the program begin
	Env    []string // environment for programs that run as the agent
	Hook   int      // number of the hook
	Code   int      // its exit code, 128+n after signal n
	Err    string   // why there is no code
}

// Report is the state of the data volume after its preparation.
type Report struct {
	Phases   []client.BootStep
	Warnings []string // texts of the lines that are warnings

	// Env has variables for everything that starts later. Home is the value of HOME for it, "" for no change.
	Env  map[string]string
	Home string

	// Full makes the repair check all of the agent's directories: the data directory belonged to another user, or an earlier
	// repair was interrupted.
	Full bool

	// Planted: the data directory was empty and was filled from the image.
	Planted bool

	Linked   bool // the data directory is a link, so root changes nothing in it
	ReadOnly bool // the data volume is read-only, and that was reported
	// HasSecrets: the data directory has files that the boot program must check, even if it has nothing else to do.
	HasSecrets bool

	// Unusable: the data volume did not answer, or there is none. Services that don't need it can start.
	Unusable bool
}

// Failed returns the first phase that failed, ignoring the named ones. ok is false if none did.
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
	Name     string // name in messages and in the timeline
	Number   int    // position among the hooks of this boot, from 1
	Command  []string
	User     string // "": the agent's user
	Timeout  time.Duration
	Required bool
	IfExists string // run only if this file exists; "": always
	ContInit bool   // a script of /etc/cont-init.d, which has its own messages

	// Inputs are paths and globs of the files that the hook reads and writes; see config.Hook. A hook is skipped if none has
	// changed since its last success. Nil: it runs at every boot. Only for hooks that run as the agent's user.
	Inputs []string
}

// ConfiguredHooks returns the hooks of boot.hooks, including the image's own.
func ConfiguredHooks(cfg *config.Config) []Hook {
	hooks := make([]Hook, len(cfg.Boot.Hooks))
	for i, h := range cfg.Boot.Hooks {
		hooks[i] = Hook{
			Name: hookName(h.Command), Command: h.Command, User: h.User, Timeout: h.Timeout, Required: h.Required, IfExists: h.IfExists,
		}
		if h.User == cfg.Agent.User {
			hooks[i].Inputs = h.Inputs
		}
	}
	return hooks
}

// hookName returns the name of the script if the command is an interpreter, else the name of the program.
func hookName(command []string) string {
	if len(command) > 1 && filepath.IsAbs(command[1]) && filepath.Ext(command[1]) != "" {
		return filepath.Base(command[1])
	}
	return filepath.Base(command[0])
}
