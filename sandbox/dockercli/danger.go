package dockercli

import (
	"path/filepath"
	"slices"
	"strings"

	"hinit/sandbox/dockerflags"
)

// What HINIT_SANDBOX_ALLOW may permit to the personality where it passes calls on to the docker command.
const (
	AllowPrivileged = "privileged" // --privileged, devices, capabilities and security options beyond those of a sandbox
	AllowHost       = "host"       // namespaces of the host or of another container, and its cgroups
	AllowSocket     = "socket"     // a mount of an engine's socket or of a directory that holds it
)

// Capabilities are those that a sandbox may have.
var Capabilities = []string{"DAC_OVERRIDE", "CHOWN", "FOWNER", "SETUID", "SETGID"}

// dangerous returns a RefusedError for a flag that leads out of the sandbox.
func dangerous(verb string, f dockerflags.Flag) *RefusedError {
	refuse := func(allow string) *RefusedError {
		return &RefusedError{What: "--" + f.Name + "=" + f.Value, Allow: allow}
	}
	switch f.Name {
	case "privileged":
		if f.Value != "false" {
			return &RefusedError{What: "docker " + verb + " --privileged", Allow: AllowPrivileged}
		}
	case "device", "device-cgroup-rule", "gpus":
		return refuse(AllowPrivileged)
	case "cap-add":
		if !slices.Contains(Capabilities, strings.TrimPrefix(strings.ToUpper(f.Value), "CAP_")) {
			return refuse(AllowPrivileged)
		}
	case "security-opt":
		if name, value, _ := strings.Cut(strings.Replace(f.Value, ":", "=", 1), "="); name != "no-new-privileges" || value == "false" {
			return refuse(AllowPrivileged)
		}
	case "pid", "ipc", "uts", "userns", "cgroupns", "network", "net":
		if f.Value == "host" || strings.HasPrefix(f.Value, "container:") || strings.HasPrefix(f.Value, "ns:") {
			return refuse(AllowHost)
		}
	case "cgroup-parent", "volumes-from", "oom-score-adj":
		return refuse(AllowHost)
	case "label":
		if strings.HasPrefix(f.Value, "hinit-") {
			return &RefusedError{What: "the label " + f.Value}
		}
	case "use-api-socket":
		return refuse(AllowSocket)
	case "volume", "mount":
		return dangerousMount(f)
	}
	return nil
}

// socketDirs are where engines have their sockets.
var socketDirs = []string{"/var/run", "/run", "/run/podman", "/run/containerd"}

func dangerousMount(f dockerflags.Flag) *RefusedError {
	source, _, _ := strings.Cut(f.Value, ":")
	if f.Name == "mount" {
		for field := range strings.SplitSeq(f.Value, ",") {
			if key, value, _ := strings.Cut(field, "="); key == "source" || key == "src" {
				source = value
			}
		}
	}
	if !filepath.IsAbs(source) {
		return nil
	}
	source = filepath.Clean(source)
	if source == "/" || slices.Contains(socketDirs, source) || strings.HasSuffix(source, ".sock") {
		return &RefusedError{What: "a mount of " + source, Allow: AllowSocket}
	}
	return nil
}
