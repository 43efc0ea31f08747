package sandbox

import (
	"time"
)

// Options say how sandboxes are made and kept. The zero value is not usable: begin with [DefaultOptions] or [FromEnv].
type Options struct {
	Image      string
	ForwardEnv []string          // names whose values come from this process, or from Dotenv where it has none
	Env        map[string]string // literal, on the container; everybody who may inspect it sees them
	Pass       []string          // further names; names of providers' credentials are left out
	Volumes    []string          // host:container[:ro]
	ExtraArgs  []string          // flags of docker run, after all others

	Credentials []string // files of the profile, by their path in Home, that commands may read below /root/.hermes

	MountCwd  bool // the host's working directory is /workspace
	HostUser  bool // run as the user of this process
	PersistFS bool // /root and /workspace are directories of the host
	Orphans   bool // sweep what others left at the first use
	CPUs      float64
	MemoryMB  int64
	DiskMB    int64
	Cwd       string        // where commands begin
	HostCwd   string        // what MountCwd mounts
	Timeout   time.Duration // of a command that names none
	Lifetime  time.Duration // idle window

	Home    string // of the profile: HERMES_HOME
	Dir     string // root of the directories below the sandboxes; made if missing
	Apart   bool   // the engine does not have State, or is not to mount it: commands run through an attached exec
	State   string // what this package keeps to itself; "" is .hinit in Dir. Whoever may write there reaches what the engine mounts.
	Profile string
	Network string // "" is the engine's default, "none", or a name
	Runtime string // "runc", "runsc", "kata", or what else the engine knows; "" is its default
	Shell   string // "" is bash, or sh where the image has none
	Session string // commands of one name share directory and variables across processes; "" is the Manager's own

	Helper string // path of hinit-sandbox-helper; "" looks beside the program and in PATH
	Docker string // address of the engine; "" is DOCKER_HOST, the current docker context, or a socket that is there

	Root   string // what root inside is, in words; shown by Describe
	NoRoot string // a line that is told once, after a command that failed as if it needed root; "" is none

	// Used is told when a command begins (+1) and ends (-1) in the container of an id. It must not block; nil is none.
	Used func(id string, n int)

	Getenv func(string) (string, bool) // for forwarded names; nil is os.LookupEnv
	Warn   func(string)                // is told what people should know; must not block; nil drops it
}

// DefaultOptions returns what holds where nothing is said.
func DefaultOptions() Options {
	return Options{
		Image: "nikolaik/python-nodejs:python3.11-nodejs20", PersistFS: true, Orphans: true,
		CPUs: 1, MemoryMB: 5120, DiskMB: 51200, Cwd: "/root", Timeout: 180 * time.Second, Lifetime: 300 * time.Second,
		Profile: "default",
	}
}
