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

// The agent's files, in the data directory and in the home of each profile (contract, section 2.1, steps 5 to 8).
var (
	// AgentOnlyDirs are directories with only the agent's own state. At every boot, hinit makes the agent their owner.
	AgentOnlyDirs = []string{ProfilesDir, "cron", "pairing", "platforms/pairing", ".hinit"}
	// MixedOwnerDirs are directories that may contain files of other owners on purpose. hinit changes the owners only after a
	// change of the data directory's owner.
	MixedOwnerDirs = []string{
		"sessions", "logs", "hooks", "memories", "skills", "skins", "plans", "workspace", "home", "lazy-packages",
		"state", "backups",
	}
	// AgentFiles are the names of files that belong to the agent. All other files may belong to the host.
	AgentFiles = []string{
		"auth.json", "auth.lock", ".env", "state.db", "state.db-shm", "state.db-wal", "hermes_state.db", "response_store.db",
		"response_store.db-shm", "response_store.db-wal", "gateway.pid", "gateway.lock", "gateway_state.json", "processes.json",
		"active_profile",
		".hinit-reserve", // a file of hinit, see profiles/intents.go
	}
)

const (
	// ProfilesDir is the directory in the data directory with the homes of the profiles.
	ProfilesDir = "profiles"
	// BootRecordFile is a file in the data directory with the inputs of each boot step at its last success. It belongs to the
	// agent. If the agent deletes it, all steps run at the next boot.
	BootRecordFile = ".hinit-boot.json"
	// RepairPendingFile says that a repair of the whole data directory has begun. If the repair is interrupted, the next boot
	// resumes it.
	RepairPendingFile = ".hinit-repair-pending"
	// EnvFile has the agent's secrets, and the key that the boot makes for each container.
	EnvFile = ".env"
	// InstallMethodFile says how the agent was installed. Older images left this file in homes that they shared with the host.
	InstallMethodFile = ".install_method"
	// ProfileNameFile is a file in a tenant's home with the profile name under which hinit gave the home to the tenant's user.
	// The agent's user can rename the home, but can't write this file.
	ProfileNameFile = ".hinit-profile"
	// ConfigFile is the agent's configuration file in a home.
	ConfigFile = "config.yaml"
	// ConfigFileMode is the mode that every boot gives to ConfigFile (step 8).
	ConfigFileMode = 0o640
)

// Options describe the data directory and the work in it. Home and Agent are required.
type Options struct {
	Home  string        // data directory, absolute and clean
	Logs  string        // directory of the gateways' logs
	User  string        // name of the agent's user, for messages
	Agent *fsutil.Actor `json:"-"` // agent's user, for file operations
	Say   func(LogLine) `json:"-"` // receives each message at once, from one goroutine at a time

	Tenants Tenants // profiles that have users of their own

	Env         func(name string) (string, bool) `json:"-"`
	ScratchDir  string                           `json:"Scratch"` // directory for the agent's files outside the volume; "" for /tmp/hermes-files
	PhaseBudget time.Duration                    // time limit of one phase; 0 for 10 s
	TotalBudget time.Duration                    `json:"Budget"` // time limit of all phases together; 0 for 30 s

	ImageBuildID     string   `json:"Stamp"` // names the build of the agent's image
	ImageFillsHome   bool     `json:"Seeds"` // the image's own boot script fills the data directory, so hinit does not
	RepairEverything bool     // the repair looks at all of the agent's directories, see [Report]
	OnlyProfiles     []string // the repair looks only at the homes of these profiles; nil for all
}

// Owner returns the agent's user as the new owner of files. It leaves out the files of tenants, wherever the agent has moved
// them. It also leaves out homes of former tenants, because hinit.yaml may lack their isolation by mistake.
func (o Options) Owner() fsutil.Owner {
	id := o.Agent.Identity()
	return fsutil.Owner{UID: id.UID, GID: id.GID, RefuseHardLinked: !fsutil.HardLinksProtected(), Excludes: o.Tenants.HasUID, HomeMarkerFile: ProfileNameFile}
}

// ChownProfile gives the home of a named profile to the agent's user, with the files that a gateway needs for its start. At the
// boot, the boot program does that for all profiles, and later changes the other files. ChownProfile does nothing if hinit
// can't change owners, or if the home is missing, a link or a mount. It blocks as long as the disk does. Warnings go to o.Say.
func ChownProfile(ctx context.Context, o Options, profile string) error {
	if !o.Agent.SwitchesIdentity() || profile == "" {
		return nil
	}
	return blocking.Do(blocking.Volume, func() error {
		home, err := fsutil.WithParentDir(o.HomePath(ProfilesDir+"/"+profile), nil, (*fsutil.Dir).OpenSubdirSameMount)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsutil.ErrSymlink) || errors.Is(err, fsutil.ErrMount) {
			return nil
		}
		if err != nil {
			return err
		}
		defer home.Close()
		o.chownFiles(&StepLog{Tell: o.Say}, home, o.Owner())
		return ctx.Err()
	})
}

// chownFiles gives a profile's home, and the files that its gateway opens first, to the user to: the agent or the tenant. The
// repair in the background changes the other files. Like the image's script, chownFiles skips links without a message.
//
// If the home belongs to a tenant's user but its profile is not a tenant, chownFiles warns and changes nothing. The agent may
// have renamed the home to get a tenant's files, or hinit.yaml may have lost the isolation by mistake.
func (o Options) chownFiles(log *StepLog, home *fsutil.Dir, to fsutil.Owner) {
	profile := path.Base(home.Path())
	if info, err := home.Lstat(""); err == nil && o.Tenants.Includes(profile) && o.Tenants.HasUID(fsutil.UID(info)) {
		to.UID, to.GID = fsutil.UID(info), fsutil.UID(info)
	}
	was, _, err := home.Chown("", to)
	if errors.Is(err, fsutil.ErrProtected) {
		log.Warn("the home of profile %s stays uid %d's, the user of an isolated profile: rename it back, set isolation: user for it, or give its "+
			"files to the agent's user as root: hinit isolate apply %s — continuing", profile, was, profile)
		return
	}
	log.ReportChown(o.Home, home.Path(), err)
	there := MayExist(home) // a single listing costs less than a system call for each name
	for _, name := range slices.Concat(AgentFiles, []string{ConfigFile, "SOUL.md"}) {
		if there(name) {
			o.chown(log, home, name, to)
		}
	}
	for _, rel := range slices.Concat(AgentOnlyDirs[1:], MixedOwnerDirs) {
		if !there(rel) {
			continue
		}
		if sub, err := home.OpenSubdirSameMount(rel); err == nil {
			o.chown(log, sub, "", to)
			sub.Close()
		}
	}
}

// chown gives a file to a user, and reports a failure. name is relative to the open directory in; "" is the directory in.
func (o Options) chown(log *StepLog, in *fsutil.Dir, name string, to fsutil.Owner) {
	_, _, err := in.Chown(name, to)
	log.ReportChown(o.Home, path.Join(in.Path(), name), err)
}

// MayExist lists the directory d, and returns a function that reports whether d can contain a path. The function always returns
// true if d can't be listed.
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
