package sandbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/samber/lo"
)

// initPaths are entry points that are an init. The init of an image must be process 1, so its container must not get a second
// init.
var initPaths = []string{"/init", "/package/admin/s6-overlay/command/init", "/usr/local/bin/hinit", "/opt/hinit/hinit", "/hinit"}

// LabelInit marks an image whose entry point is an init, if its value is "1".
const LabelInit = "hinit-init"

// hasOwnInit reports whether the entry point of an image is an init. If the engine doesn't have the image, it returns false.
func hasOwnInit(ctx context.Context, engine Engine, ref string) bool {
	image, err := engine.Image(ctx, ref)
	return err == nil && (image.Labels[LabelInit] == "1" || len(image.Entrypoint) > 0 && slices.Contains(initPaths, image.Entrypoint[0]))
}

// buildSpec returns the Spec for the container of a key, and makes the host directories that the container mounts. ownInit is
// true if the image has its own init. limitsDisk is true if the engine may be able to limit the size of a container's file
// system.
func buildSpec(o Options, key Key, ownInit, limitsDisk bool) (Spec, error) {
	s := Spec{
		Name: randomName(), Image: o.Image, Labels: AgentLabels(key), Cmd: []string{"sleep", "infinity"}, Dir: o.Cwd, Init: !ownInit,
		CapDrop: []string{"ALL"}, CapAdd: slices.Clone(Capabilities), SecurityOpt: []string{"no-new-privileges"}, PidsLimit: 256,
		CPUs: o.CPUs, Memory: o.MemoryMB << 20, Network: o.Network, Runtime: o.Runtime,
	}
	if o.HostUser {
		s.User = fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
		s.CapAdd = slices.DeleteFunc(s.CapAdd, func(c string) bool { return strings.HasPrefix(c, "SET") })
	}
	if o.DiskMB > 0 && limitsDisk {
		s.Storage = map[string]string{"size": fmt.Sprintf("%dm", o.DiskMB)}
	} else if o.DiskMB > 0 {
		o.warn(noDiskLimitWarning)
	}
	run := lo.Ternary(ownInit, "rw,exec,nosuid,size=64m", "rw,noexec,nosuid,size=64m") // s6 writes executable files to this directory.
	s.addTmpfs("/tmp", "rw,exec,nosuid,size=512m")
	s.addTmpfs("/var/tmp", "rw,noexec,nosuid,size=256m")
	s.addTmpfs("/run", run)
	if err := s.addWritableMounts(o, key); err != nil {
		return Spec{}, err
	}
	s.Mounts = append(s.Mounts, credentialMounts(o.Home, o.Credentials, o.warn)...)
	s.Env = SortedAssignments(o.Env)
	rest, err := s.ApplyFlags(o.ExtraArgs)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%q is not a flag", rest[0])
	}
	if err != nil {
		return Spec{}, &OptionError{Name: "TERMINAL_DOCKER_EXTRA_ARGS", Value: strings.Join(o.ExtraArgs, " "), Want: "flags of docker run only: " + err.Error()}
	}
	maps.Copy(s.Labels, AgentLabels(key)) // Set these labels last, so that no flag can remove them.
	return s, nil
}

// noDiskLimitWarning is the warning for an engine that can't limit the size of a container's file system.
const noDiskLimitWarning = "the engine can't limit the size of a container's file system here: there is no limit (it takes overlay2 on XFS with pquota)"

func (s *Spec) addTmpfs(target, options string) {
	s.Mounts = append(s.Mounts, Mount{Type: "tmpfs", Target: target, Options: options})
}

func (s *Spec) addBind(source, target string) {
	s.Mounts = append(s.Mounts, Mount{Type: "bind", Source: source, Target: target, CreateHostParent: true})
}

// addWritableMounts adds the operator's volumes, and mounts for the directories to which commands may write.
func (s *Spec) addWritableMounts(o Options, key Key) error {
	explicit := slices.ContainsFunc(o.Volumes, func(m Mount) bool { return filepath.Clean(m.Target) == "/workspace" })
	hostCwd := ""
	if o.MountCwd && !explicit {
		if info, err := os.Stat(o.HostCwd); err == nil && info.IsDir() {
			if hostCwd, err = filepath.Abs(o.HostCwd); err != nil {
				return err
			}
			s.addBind(hostCwd, "/workspace")
		}
	}
	places := []struct{ name, target, size string }{{"home", "/root", "1g"}}
	if !explicit && hostCwd == "" {
		places = append(places, struct{ name, target, size string }{"workspace", "/workspace", "10g"})
	}
	for _, at := range places {
		if !o.PersistFS {
			s.addTmpfs(at.target, "rw,exec,size="+at.size)
			continue
		}
		// Add a Mount instead of a flag, because -v can't have a name with a colon.
		dir := filepath.Join(o.Dir, "docker", Sanitise(cmp.Or(key.Task, "default")), at.name)
		// With AttachOnly, the policy makes the directory later, with the caller's rights.
		if !o.AttachOnly {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("cannot make the %s of the sandbox: %w", at.name, err)
			}
		}
		s.addBind(dir, at.target)
	}
	if !o.PersistFS {
		s.addTmpfs("/home", "rw,exec,size=1g")
	}
	s.Mounts = append(s.Mounts, o.Volumes...)
	return nil
}

// credentialMounts returns mounts for the files of a profile that commands may read. files are their paths below home. It
// leaves out a missing file with a warning: the mount could prevent the start of the container, or put a directory where a
// file is expected. It also leaves out a link that leads out of the profile.
func credentialMounts(home string, files []string, warn func(string)) []Mount {
	if len(files) == 0 {
		return nil
	}
	var out []Mount
	top, err := filepath.EvalSymlinks(home)
	if err != nil {
		warn(fmt.Sprintf("credential files: the profile can't be read, and none is mounted: %v", err))
		return nil
	}
	for _, name := range files {
		source := filepath.Join(home, name)
		real, err := filepath.EvalSymlinks(source)
		rel, outside := filepath.Rel(top, real)
		info, gone := os.Lstat(real)
		switch {
		case err != nil, gone != nil:
			warn(fmt.Sprintf("credential file %s: source not found, not mounted", source))
		case outside != nil || !filepath.IsLocal(rel) || !filepath.IsLocal(name):
			warn(fmt.Sprintf("credential file %s: it leads out of the profile, and is not mounted", source))
		case info.IsDir():
			warn(fmt.Sprintf("credential file %s: source is a directory, not mounted", source))
		default:
			out = append(out, Mount{Type: "bind", Source: real, Target: "/root/.hermes/" + filepath.ToSlash(name), ReadOnly: true, CreateHostParent: true})
		}
	}
	return out
}

// containerName returns a name that is derived from the labels of a container. An engine refuses a name that is taken, so two
// processes can't make two containers for one key. The name is not used to find the container.
func (m *Manager) containerName(labels map[string]string) string {
	sum := sha256.Sum256([]byte(m.store.id + "\x00" + labels[LabelTask] + "\x00" + labels[LabelProfile]))
	return fmt.Sprintf("hermes-%x", sum[:4])
}

func randomName() string { return "hermes-" + randomHex(4) }

// forwardedVariables returns the values of the variables in o.ForwardEnv. It takes a value from the environment of this
// process, otherwise from the profile's .env. It leaves out a variable that is empty in both.
func forwardedVariables(o Options) map[string]string {
	if len(o.ForwardEnv) == 0 {
		return nil // The service may be root, so it must not read a caller's file.
	}
	dotenv, err := Dotenv(filepath.Join(o.Home, ".env"))
	if err != nil {
		o.warn(err.Error())
	}
	return lo.FilterSliceToMap(o.ForwardEnv, func(name string) (string, string, bool) {
		value := cmp.Or(os.Getenv(name), dotenv[name])
		return name, value, value != ""
	})
}

func (o *Options) warn(text string) {
	if o.Warn != nil {
		o.Warn(text)
	}
}

// Labels of a container. The agent defines the first three, and a container is a sandbox only if it has them all.
const (
	LabelAgent   = "hermes-agent"   // Marks an agent's container; always "1".
	LabelTask    = "hermes-task-id" // Name of the task, after [Sanitise].
	LabelProfile = "hermes-profile" // Name of the profile, after [Sanitise].

	LabelDir = "hinit-dir" // Working directory of commands, for a container to which the engine only gives "/".
	// Label with the id of the volume to which the container belongs; managers of other volumes don't touch the container.
	LabelVolume = "hinit-volume"
	LabelSource = "hinit-source" // Label on a docker volume, with the directory that the volume replaces.
	LabelClient = "hinit-client" // Process that created the container with docker run, without docker ps before it.
)

// VolumePrefix is the prefix of the names of the private volumes of sandboxes, see policy.RootPrivate.
const VolumePrefix = "hinit-private-"

// AgentLabels returns the labels by which the agent recognizes a container of this key: LabelAgent, LabelTask and LabelProfile.
func AgentLabels(key Key) map[string]string {
	return map[string]string{LabelAgent: "1", LabelTask: Sanitise(cmp.Or(key.Task, "default")), LabelProfile: Sanitise(cmp.Or(key.Profile, "default"))}
}

// Sanitise converts a name to a valid label value. Different names may become the same value, so don't use it as a key.
func Sanitise(name string) string {
	clean := regexp.MustCompile(`[^\w.-]`).ReplaceAllString(name, "_")
	return cmp.Or(clean[:min(len(clean), 63)], "unknown")
}
