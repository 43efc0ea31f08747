package boot

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
)

// The agent's files in the data directory, and in the home of each profile (contract, section 2.1, steps 5 to 8).
var (
	// AlwaysDirs are directories that hold only the agent's own state. At every boot hinit checks that the agent owns them.
	AlwaysDirs = []string{ProfilesDir, "cron", "pairing", "platforms/pairing", ".hinit"}
	// TargetedDirs are directories that may contain files of other owners on purpose. They are checked only if the data
	// directory belonged to another user before.
	TargetedDirs = []string{
		"sessions", "logs", "hooks", "memories", "skills", "skins", "plans", "workspace", "home", "lazy-packages",
		"state", "backups", // not in the contract's list; created by the gateway and by this boot
	}
	// AgentFiles are the names of files that belong to the agent; all other files may belong to the host.
	AgentFiles = []string{
		"auth.json", "auth.lock", ".env", "state.db", "state.db-shm", "state.db-wal", "hermes_state.db", "response_store.db",
		"response_store.db-shm", "response_store.db-wal", "gateway.pid", "gateway.lock", "gateway_state.json", "processes.json",
		"active_profile",
		".hinit-reserve", // hinit's own file, see profiles/intents.go
	}
)

const (
	// ProfilesDir is the directory of the profiles' homes, in the data directory.
	ProfilesDir = "profiles"
	// RecordFile is the file in the data directory that records the inputs of each step's last success. It belongs to the
	// agent. If the agent deletes it, all steps run at the next boot.
	RecordFile = ".hinit-boot.json"
	// PendingFile marks that a repair of the whole data directory has begun. After an interruption the next boot resumes the
	// repair.
	PendingFile = ".hinit-repair-pending"
	// EnvFile holds the agent's secrets, including a key that the boot generates for each container.
	EnvFile = ".env"
	// StampFile is a note about the install method. Older images left it in homes that they shared with the host.
	StampFile = ".install_method"
	// NameFile is the name of the file in a tenant's home that records the name for which hinit has given the home to the tenant's
	// user. The agent's user can rename the home, but it can't write this file.
	NameFile = ".hinit-profile"
	// ConfigFile is the agent's configuration file in a home.
	ConfigFile = "config.yaml"
	// ConfigMode is the mode of ConfigFile after every boot (step 8).
	ConfigMode = 0o640
)

// Options configures work on the data directory. Home and Agent are required.
type Options struct {
	Home  string        // data directory, absolute and clean
	Logs  string        // directory of the gateways' logs
	User  string        // name of the agent's user in messages
	Agent *fsutil.Actor `json:"-"` // identity of the agent's user
	Say   func(Line)    `json:"-"` // receives every message immediately; called by one goroutine at a time

	Tenants Tenants // the profiles that have their own users

	Env         func(name string) (string, bool) `json:"-"`
	Scratch     string                           // the agent's directory for files outside of the volume; "" for /tmp/hermes-files
	PhaseBudget time.Duration                    // time limit of one phase; 0 for 10 s
	Budget      time.Duration                    // time limit of all phases; 0 for 30 s

	Stamp        string   // identifies the build of the agent's image
	Seeds        bool     // the image's boot script fills the data directory in place of hinit
	Full         bool     // the repair checks all of the agent's directories, see [Report]
	OnlyProfiles []string // the repair handles only the homes of these profiles; nil for all
}

// Owner returns the agent's user as the owner of files. A change to this owner leaves out the files of tenants, wherever the
// agent has moved them. It also leaves out former tenants' homes, because the configuration may lack the isolation by mistake.
func (o Options) Owner() fsutil.Owner {
	id := o.Agent.Identity()
	return fsutil.Owner{UID: id.UID, GID: id.GID, KeepLinked: !fsutil.HardLinksProtected(), Keep: o.Tenants.HasUID, HomeMark: NameFile}
}

// Adopt makes the agent's user the owner of the files that a gateway needs to start, in the home of one named profile. The
// boot program does this for all profiles, and handles the other files later. Adopt does nothing if it can't change owners,
// or if the profile is missing, a link or a mount. It blocks as long as the disk does. Warnings go to o.Say.
func Adopt(ctx context.Context, o Options, profile string) error {
	if !o.Agent.Switches() || profile == "" {
		return nil
	}
	return blocking.Do(blocking.Volume, func() error {
		home, err := fsutil.InParent(o.Path(ProfilesDir+"/"+profile), nil, (*fsutil.Dir).SubOnSameMount)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsutil.ErrSymlink) || errors.Is(err, fsutil.ErrMount) {
			return nil
		}
		if err != nil {
			return err
		}
		defer home.Close()
		o.giveFiles(&StepLog{Tell: o.Say}, home, o.Owner())
		return ctx.Err()
	})
}

// giveFiles changes the owner of a profile's home, and of the files that its gateway opens first, to the agent or the tenant. The
// parameter to is the agent as an owner. The repair in the background handles the other files. giveFiles skips links without a
// message, as the image's script does.
//
// It warns of a home that belongs to the user of a tenant although its profile is no tenant, and changes nothing there. The agent
// could have renamed the home to get a tenant's files, and hinit.yaml could have lost the isolation by mistake.
func (o Options) giveFiles(log *StepLog, home *fsutil.Dir, to fsutil.Owner) {
	profile := path.Base(home.Path())
	if info, err := home.Lstat(""); err == nil && o.Tenants.Includes(profile) && o.Tenants.HasUID(fsutil.UID(info)) {
		to.UID, to.GID = fsutil.UID(info), fsutil.UID(info)
	}
	was, _, err := home.Chown("", to)
	if errors.Is(err, fsutil.ErrKept) {
		log.Warn("the home of profile %s stays uid %d's, the user of an isolated profile: rename it back, set isolation: user for it, or give its "+
			"files to the agent's user as root: hinit isolate apply %s — continuing", profile, was, profile)
		return
	}
	log.ReportChown(o.Home, home.Path(), err)
	there := MayExist(home) // one listing costs less than a system call for each name
	for _, name := range slices.Concat(AgentFiles, []string{ConfigFile, "SOUL.md"}) {
		if there(name) {
			_, _, err := home.Chown(name, to)
			log.ReportChown(o.Home, home.Path()+"/"+name, err)
		}
	}
	for _, rel := range slices.Concat(AlwaysDirs[1:], TargetedDirs) {
		if !there(rel) {
			continue
		}
		if sub, err := home.SubOnSameMount(rel); err == nil {
			_, _, err = sub.Chown("", to)
			log.ReportChown(o.Home, sub.Path(), err)
			sub.Close()
		}
	}
}

// MayExist lists the directory d, and returns a function that reports whether a name may exist in d. If the listing fails,
// the function always returns true.
func MayExist(d *fsutil.Dir) func(rel string) bool {
	entries, err := d.ReadDir("")
	if err != nil {
		return func(string) bool { return true }
	}
	return func(rel string) bool {
		first, _, _ := strings.Cut(rel, "/")
		_, found := slices.BinarySearchFunc(entries, first, func(e fs.DirEntry, name string) int { return strings.Compare(e.Name(), name) })
		return found
	}
}
