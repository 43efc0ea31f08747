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

// The boot program works on the data volume, so that PID 1 neither holds the code nor waits for that disk. It does the boot's work, repairs
// owners, compresses the archives of logs and examines the volume. It is hinit-tools under the name ProgramName. PID 1 starts it, writes a
// [Job] to its standard input, and reads messages from its standard output. Some messages ask PID 1 for something; PID 1 then writes an
// [Answer].

const (
	// Program is the file of the boot program, which is installed beside hinit.
	Program = "hinit-tools"
	// ProgramName is its argv[0].
	ProgramName = "hinit-boot"

	// Seed is the file that the build of the image saves after a first boot with an empty data directory. It has the content of
	// all files, one after the other. Their names are in a file beside it, with the suffix kept.Index.
	Seed = "/usr/share/hinit/home"
	// Install is the agent's installation in its image.
	Install = "/opt/hermes"
)

// Job says what the boot program does: the steps before the first service that not every container needs. [Prepare] does the others. With
// Plant it only fills an empty data directory, with Repair it does what follows in the background.
type Job struct {
	Options   Options
	AgentUser account.User
	Known     bool   // /etc/passwd has the agent's user
	Version   string // of hinit: a new version runs all hooks
	Hooks     []Hook
	Plain     bool // there is no agent and no data volume; only the hooks run
	Strict    bool // the first failed hook ends the boot
	Scripts   bool // so does a failed script of the image
	Plant     bool
	Repair    bool
	Examine   bool               // examine the data volume for hinit doctor, and nothing else
	Marker    string             // profiles.marker, for Examine
	Profiles  int                // profiles.max, for Examine
	Pack      []gzipped.Archives // compress the archives of logs that are older than Young, and nothing else
	Young     time.Duration
	Planted   bool // the repair writes to the disk what was copied to an empty data directory
}

// Wanted reports whether the boot program has anything to do before the first service. It has in the image of the agent, and if hooks, scripts
// or variables ask for it. Files on the data volume do not count. It blocks on the root file system.
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

// Message is what the boot program says. One field is set.
type Message struct {
	Line   *Line             `json:",omitempty"` // for the container's log
	Agents *Line             `json:",omitempty"` // likewise; an agent can cause it
	Report *Report           `json:",omitempty"` // the volume is ready; answered with Env
	Begin  *int              `json:",omitempty"` // so many hooks follow
	Hook   *Hook             `json:",omitempty"` // PID 1 runs it; answered with the same Hook
	Steps  []client.BootStep `json:",omitempty"` // the hooks are over
	Repair *client.Repair    `json:",omitempty"` // how far the repair has come
	Result string            `json:",omitempty"` // what it has changed
	Found  client.Findings   `json:",omitempty"` // by a check of Examine

	Examining *Examining `json:",omitempty"` // a check of Examine begins

	Packed []gzipped.Result `json:",omitempty"` // what became of each of Pack
	Done   *Done            `json:",omitempty"` // the program ends
}

// Examining is the check that an examination of the data volume is at. Silent says what it means that it does not end.
type Examining struct{ Check, Silent string }

// Done is the end of the boot program's work. Error is why the container can't go on, "" for nothing.
type Done struct{ Error string }

// Answer is what PID 1 answers.
type Answer struct {
	Report *Report  // of [Prepare]: the program begins
	Env    []string // environment of what runs as the agent
	Hook   int      // number of the hook
	Code   int      // its exit code, 128+n after signal n
	Err    string   // why it has none
}

// Report is the state of the data volume after its preparation.
type Report struct {
	Phases   []client.BootStep
	Warnings []string // texts of the lines that are warnings

	// Env has variables for everything that is started later; Home is the value of HOME for it, "" for no change.
	Env  map[string]string
	Home string

	// Full tells the repair to check all of the agent's directories: the data directory belonged to another user, or an earlier repair was
	// interrupted.
	Full bool

	// Planted: the data directory was empty and is now a copy of the image's.
	Planted bool

	Linked   bool // the data directory is a link, so root does nothing in it
	ReadOnly bool // the data volume is, and that is said
	// HasSecrets: the data directory has files that the boot program checks, even where it has nothing else to do.
	HasSecrets bool

	// Unusable: the data volume did not answer, or there is none. Services that don't need it can start.
	Unusable bool
}

// Failed returns the first phase that failed, leaving out the named ones; false when there is none.
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
	Name     string // its name in messages and in the timeline
	Number   int    // its place among the hooks of this boot, from 1
	Command  []string
	User     string // "": the agent's user
	Timeout  time.Duration
	Required bool
	IfExists string // it runs only when there is such a file; "": always
	ContInit bool   // it is a script of /etc/cont-init.d, which has messages of its own

	// Inputs are paths and globs of the files that the hook reads and writes; see config.Hook. A hook is skipped when none has
	// changed since its last success. Nil: it runs at every boot. Only for hooks that run as the agent's user.
	Inputs []string
}

// ConfiguredHooks returns the hooks of boot.hooks, the image's own included.
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

// hookName returns the script's name if an interpreter runs one, else the program's.
func hookName(command []string) string {
	if len(command) > 1 && filepath.IsAbs(command[1]) && filepath.Ext(command[1]) != "" {
		return filepath.Base(command[1])
	}
	return filepath.Base(command[0])
}
