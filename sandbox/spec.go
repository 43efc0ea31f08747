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

// initPaths are the entry points by which an image with its own init is recognised. Another init as process 1 would conflict with
// it.
var initPaths = []string{"/init", "/package/admin/s6-overlay/command/init", "/usr/local/bin/hinit", "/opt/hinit/hinit", "/hinit"}

// LabelInit with the value "1" on an image means that its entry point is an init.
const LabelInit = "hinit-init"

// hasOwnInit reports whether an image has its own init. It returns false if the engine doesn't know the image.
func hasOwnInit(ctx context.Context, engine Engine, ref string) bool {
	image, err := engine.Image(ctx, ref)
	return err == nil && (image.Labels[LabelInit] == "1" || len(image.Entrypoint) > 0 && slices.Contains(initPaths, image.Entrypoint[0]))
}

// buildSpec returns the Spec for the container of a key. It creates the host directories that the container mounts. The parameter
// ownInit says whether the image has its own init. The parameter limitsDisk says whether the engine may be able to limit the size
// of a container's file system.
func buildSpec(o Options, key Key, ownInit, limitsDisk bool) (Spec, error) {
	s := Spec{
		Name: randomName(), Image: o.Image, Labels: Labels(key), Cmd: []string{"sleep", "infinity"}, Dir: o.Cwd, Init: !ownInit,
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
		o.warn(noDiskLimit)
	}
	run := "rw,noexec,nosuid,size=64m"
	if ownInit {
		run = "rw,exec,nosuid,size=64m" // s6 puts executable files there
	}
	s.addTmpfs("/tmp", "rw,exec,nosuid,size=512m")
	s.addTmpfs("/var/tmp", "rw,noexec,nosuid,size=256m")
	s.addTmpfs("/run", run)
	if err := s.addWritable(o, key); err != nil {
		return Spec{}, err
	}
	s.Mounts = append(s.Mounts, credentialMounts(o.Home, o.Credentials, o.warn)...)
	s.Env = Assignments(o.Env)
	rest, err := s.ApplyFlags(o.ExtraArgs)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%q is none", rest[0])
	}
	if err != nil {
		return Spec{}, &OptionError{Name: "TERMINAL_DOCKER_EXTRA_ARGS", Value: strings.Join(o.ExtraArgs, " "), Want: "flags of docker run only: " + err.Error()}
	}
	maps.Copy(s.Labels, Labels(key)) // no flag may remove these labels
	return s, nil
}

// noDiskLimit is the warning if the file system of a container can't be limited.
const noDiskLimit = "the engine can't limit the size of a container's file system here: there is no limit (it takes overlay2 on XFS with pquota)"

func (s *Spec) addTmpfs(target, options string) {
	s.Mounts = append(s.Mounts, Mount{Type: "tmpfs", Target: target, Options: options})
}

func (s *Spec) addBind(source, target string) {
	s.Mounts = append(s.Mounts, Mount{Type: "bind", Source: source, Target: target, CreateHostParent: true})
}

// addWritable adds the operator's volumes, and mounts for the directories to which commands may write.
func (s *Spec) addWritable(o Options, key Key) error {
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
		dir := filepath.Join(o.Dir, "docker", Sanitise(cmp.Or(key.Task, "default")), at.name) // a colon in the name would break -v
		// With AttachOnly, the policy makes it with the caller's rights, once it has allowed the sandbox.
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

// credentialMounts returns mounts for the files of a profile that commands may read. The parameter files holds their paths,
// relative to home. Missing files and directories are left out with a warning. A mount of a missing file could prevent the start
// of the container, or put a directory where a file is expected. A link that leads out of the profile is also left out.
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
		case !filepath.IsLocal(name):
			warn(fmt.Sprintf("credential file %q: it is not inside the profile, and is not mounted", name))
		case err != nil, gone != nil:
			warn(fmt.Sprintf("credential file %s: source not found, not mounted", source))
		case outside != nil || !filepath.IsLocal(rel):
			warn(fmt.Sprintf("credential file %s: it leads out of the profile, and is not mounted", source))
		case info.IsDir():
			warn(fmt.Sprintf("credential file %s: source is a directory, not mounted", source))
		default:
			out = append(out, Mount{Type: "bind", Source: real, Target: "/root/.hermes/" + filepath.ToSlash(name), ReadOnly: true, CreateHostParent: true})
		}
	}
	return out
}

// containerName returns the name for the container of a key. The container is found by its labels, not by this name. The name
// prevents a second container for the same key, because the engine refuses a name that is taken.
func (m *Manager) containerName(labels map[string]string) string {
	sum := sha256.Sum256([]byte(m.store.id + "\x00" + labels[LabelTask] + "\x00" + labels[LabelProfile]))
	return fmt.Sprintf("hermes-%x", sum[:4])
}

func randomName() string { return "hermes-" + randomHex(4) }

// forwardedVariables returns the values of the variables that o.ForwardEnv names. If a variable is empty in this process, its
// value comes from the profile's .env. A variable that is empty in both is left out.
func forwardedVariables(o Options) map[string]string {
	if len(o.ForwardEnv) == 0 {
		return nil // the service, which may run as root, must not read files of its callers
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

// Labels of a sandbox's container. The first three are defined by the agent, and a container is a sandbox only with their exact
// values.
const (
	LabelAgent   = "hermes-agent"   // always "1"
	LabelTask    = "hermes-task-id" // name of the task, as Sanitise returns it
	LabelProfile = "hermes-profile" // name of the profile, as Sanitise returns it

	LabelVolume = "hinit-volume" // id of the volume that the container belongs to; managers of other volumes do not touch it
	LabelSource = "hinit-source" // on an engine volume: the directory that it replaces
	LabelClient = "hinit-client" // the process that made the container with docker run for itself, without a preceding docker ps
)

// VolumePrefix begins the names of all private volumes of sandboxes.
const VolumePrefix = "hinit-private-"

// Labels returns the agent's three labels for a key.
func Labels(key Key) map[string]string {
	return map[string]string{LabelAgent: "1", LabelTask: Sanitise(cmp.Or(key.Task, "default")), LabelProfile: Sanitise(cmp.Or(key.Profile, "default"))}
}

// Sanitise converts a name to a label value. Different names may be converted to the same value, so never use the value in place
// of the name.
func Sanitise(name string) string {
	clean := regexp.MustCompile(`[^\w.-]`).ReplaceAllString(name, "_")
	return cmp.Or(clean[:min(len(clean), 63)], "unknown")
}
