package sandbox

import (
	"path/filepath"
	"slices"
	"strings"

	"hinit/sandbox/dockerflags"
)

// The words of HINIT_SANDBOX_ALLOW, which counts without the service only.
const (
	AllowPrivileged = "privileged" // --privileged, devices, capabilities and security options beyond a sandbox's own
	AllowHost       = "host"       // namespaces of the host or of another container, and its cgroups
	AllowSocket     = "socket"     // a mount of an engine's socket or of a directory that holds it
)

// Capabilities are all that a sandbox may have (contract, section 5.1).
var Capabilities = []string{"DAC_OVERRIDE", "CHOWN", "FOWNER", "SETUID", "SETGID"}

// socketDirs are where engines have their sockets.
var socketDirs = []string{"/var/run", "/run", "/run/podman", "/run/containerd"}

// LeadsOut says what of a Spec gives more than a sandbox, mostly root on the host, and which word permits it. It is "" where there is nothing
// that the words given don't permit. It is the one list of such things, for the service and for the docker personality.
func (s *Spec) LeadsOut(permitted ...string) (what, word string) {
	found := func(text, allow string) {
		if what == "" && !slices.Contains(permitted, allow) {
			what, word = text, allow
		}
	}
	if s.Privileged {
		found("--privileged", AllowPrivileged)
	}
	for _, d := range s.Devices {
		found("the device "+d, AllowPrivileged)
	}
	for _, c := range s.CapAdd {
		if !slices.Contains(Capabilities, strings.TrimPrefix(strings.ToUpper(c), "CAP_")) {
			found("the capability "+c, AllowPrivileged)
		}
	}
	for _, o := range s.SecurityOpt {
		if name, value, _ := strings.Cut(strings.Replace(o, ":", "=", 1), "="); name != "no-new-privileges" || value != "" && value != "true" {
			found("the security option "+o, AllowPrivileged)
		}
	}
	for _, mode := range []string{s.PIDMode, s.IPCMode, s.UTSMode, s.UserNS, s.CgroupNS, s.Network} {
		if mode == "host" || strings.HasPrefix(mode, "container:") || strings.HasPrefix(mode, "ns:") {
			found("a namespace of the host or of another container ("+mode+")", AllowHost)
		}
	}
	for _, m := range s.Mounts {
		source := filepath.Clean(m.Source)
		if source == "/" || slices.Contains(socketDirs, source) || filepath.IsAbs(source) && strings.HasSuffix(source, ".sock") {
			found("a mount of "+source, AllowSocket)
		}
	}
	return what, word
}

// unsaid are the flags that no Spec has, and that lead out of a sandbox all the same, with the word that permits each.
var unsaid = map[string]string{
	"device-cgroup-rule": AllowPrivileged, "gpus": AllowPrivileged, "cgroup-parent": AllowHost, "volumes-from": AllowHost, "oom-score-adj": AllowHost,
	"use-api-socket": AllowSocket,
}

// FlagLeadsOut is [Spec.LeadsOut] of one flag of docker run, by its long name, whether a Spec has it or not.
func FlagLeadsOut(name, value string, permitted ...string) (what, word string) {
	if word, is := unsaid[name]; is {
		if slices.Contains(permitted, word) {
			return "", ""
		}
		return "--" + name + "=" + value, word
	}
	if name == "label" && strings.HasPrefix(value, "hinit-") {
		return "the label " + value, ""
	}
	s := new(Spec)
	_ = s.Set([]dockerflags.Flag{{Name: name, Value: value}}) // one that is wrong in part is looked at too
	return s.LeadsOut(permitted...)
}
