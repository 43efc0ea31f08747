package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/account"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
)

// DockerSockets lists where the Docker socket may be. The first existing one is used.
var DockerSockets = []string{"/var/run/docker.sock", "/run/docker.sock"}

// GraphicsDir is the directory of the graphics devices.
const GraphicsDir = "/dev/dri"

// Identity is the report of the boot program about the agent's user in /etc.
type Identity struct {
	User     account.User
	LogLines []LogLine `json:"Lines"`
	Error    string    // reason why the container must not start; "" if it may start
}

// maxIdentity is the maximum size in bytes of the boot program's report about the agent's user.
const maxIdentity = 1 << 20

// ResolveAgent finds the agent's user. Call it once, before all other steps. If the container asks for other ids, or if the
// agent must join the group of a device, the boot program changes /etc/passwd and /etc/group. The call may block on /etc and
// /dev.
func ResolveAgent(cfg *config.Config) (Agent, error) { return resolveAgent(cfg, os.Geteuid()) }

func resolveAgent(cfg *config.Config, uid int) (Agent, error) {
	user, err := account.Lookup("", cfg.Agent.User)
	a := Agent{User: user, InPasswd: err == nil}
	switch {
	case uid != 0:
		for _, names := range [][2]string{account.UIDVars, account.GIDVars} {
			if _, name, text, _ := account.RequestedID(os.Getenv, names); text != "" {
				a.LogLines = append(a.LogLines, Warning(name+" has no effect in a container that is not started as root"))
			}
		}
	case err != nil:
		return Agent{}, UnknownAgent(cfg.Agent.User, err)
	case user.UID != 0 && !a.idsAreCurrent():
		if err := a.updateUser(cfg.Agent.User); err != nil {
			return Agent{}, UnknownAgent(cfg.Agent.User, err)
		}
	}
	return a.withCred(), nil
}

// idsAreCurrent reports whether /etc already has the ids and groups that the container asks for. Then no boot program is
// needed.
func (a *Agent) idsAreCurrent() bool {
	has := func(id uint32, names [2]string) bool {
		want, _, text, ok := account.RequestedID(os.Getenv, names)
		return text == "" || ok && want == id
	}
	if !has(a.User.UID, account.UIDVars) || !has(a.User.GID, account.GIDVars) {
		return false
	}
	if a.User.Name == "" { // a user without a name can't be in a group of /etc/group
		return true
	}
	if path, gid, ok := DockerSocket(DockerSockets, os.LookupEnv); ok {
		if !slices.Contains(a.User.Groups, gid) {
			return false
		}
		a.LogLines = append(a.LogLines, AlreadyInGroupMessage(a.User.Name, gid, path))
	}
	devices, _ := os.ReadDir(GraphicsDir)
	return !slices.ContainsFunc(devices, func(e fs.DirEntry) bool {
		gid, is := DeviceGroup(e)
		return is && !slices.Contains(a.User.Groups, gid)
	})
}

// DockerSocket returns the first existing socket and its group. ok is false without a socket, or if the sandbox service is on.
// Then the agent must not get the socket, because its group has the power of root on the host.
func DockerSocket(sockets []string, env func(string) (string, bool)) (path string, gid uint32, ok bool) {
	if config.IsShellTruthy(EnvOf(env, "HINIT_SANDBOX")) {
		return "", 0, false
	}
	for _, path := range sockets {
		if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
			return path, fsutil.Stat(info).Gid, true
		}
	}
	return "", 0, false
}

// AlreadyInGroupMessage returns a message that the agent's user is in the group of the Docker socket.
func AlreadyInGroupMessage(user string, gid uint32, path string) LogLine {
	return Info(fmt.Sprintf("%s already in group %d for %s", user, gid, path))
}

// DeviceGroup returns the group of a graphics device, for the agent's user to join. ok is false for root's group, which gives
// access to far more than the device.
func DeviceGroup(e fs.DirEntry) (gid uint32, ok bool) {
	info, err := e.Info()
	if err != nil || info.IsDir() || info.Mode()&fs.ModeSymlink != 0 || fsutil.Stat(info).Gid == 0 {
		return 0, false
	}
	return fsutil.Stat(info).Gid, true
}

// updateUser makes the boot program update the agent's user in /etc. userName is agent.user of hinit.yaml. If the program
// fails, updateUser adds a warning, and uses the ids that the container asks for.
func (a *Agent) updateUser(userName string) error {
	self, err := os.Executable()
	var out, stderr []byte
	if err == nil {
		out, stderr, _, err = proc.Output(context.Background(), proc.Spec{
			Path: filepath.Join(filepath.Dir(self), BootProgram), Argv: []string{BootProgramName, userName}, Env: os.Environ(), Dir: "/",
		}, maxIdentity)
	}
	var found Identity
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		a.User.ApplyRequestedIDs(os.Getenv)
		a.LogLines = append(a.LogLines, Warning(fmt.Sprintf("cannot settle the agent's user in /etc: %v: %s; install the %s of this version beside hinit — continuing",
			err, strings.TrimSpace(string(stderr)), BootProgram)))
		return nil
	}
	if found.Error != "" {
		return errors.New(found.Error)
	}
	a.User, a.LogLines = found.User, found.LogLines
	return nil
}

// CheckStartUser refuses a container that was started as the user uid, unless uid is root or the agent. Any other user can't
// write to the data volume (contract, section 2.1, step 1, and section 3, step 1). Any uid is allowed if known is false (the
// image has no user for the agent), or if HINIT_ALLOW_ANY_UID is set, for platforms that choose the uid. In a pod,
// CheckStartUser also allows a uid that OpenShift assigns.
//
// The error has two lines, with prefixes that people search for in the log. Print it on standard error, and exit with 1.
func CheckStartUser(uid int, agentUID uint32, known bool, env func(string) (string, bool)) error {
	if uid == 0 || !known || int64(uid) == int64(agentUID) || config.IsShellTruthy(EnvOf(env, "HINIT_ALLOW_ANY_UID")) ||
		InPod(env) && uid >= platformUID {
		return nil
	}
	if InPod(env) {
		return fmt.Errorf(`[stage2] ERROR: the pod runs as uid %[1]d, but the agent's user is %[2]d; set securityContext.runAsUser and fsGroup to %[2]d
[hermes] ERROR: the pod runs as uid %[1]d; set securityContext.runAsUser and fsGroup to %[2]d, or set HINIT_ALLOW_ANY_UID=1 to run as %[1]d with data that it owns`,
			uid, agentUID)
	}
	return fmt.Errorf(`[stage2] ERROR: container started with --user %[1]d, but the agent's user is %[2]d; start it as root and set HERMES_UID and HERMES_GID (or PUID and PGID) to the ids that the data is to have
[hermes] ERROR: container started with --user %[1]d; leave --user away and set HERMES_UID and HERMES_GID (or PUID and PGID), use --user %[2]d, or set HINIT_ALLOW_ANY_UID=1 to run as %[1]d with data that it owns`,
		uid, agentUID)
}

// platformUID is the lowest uid that counts as assigned by a platform. The ranges of OpenShift begin at 1000000000.
const platformUID = 1_000_000
