package boot

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/procstat"
)

// ContainerFacts describe the container to [StartRestrictions].
type ContainerFacts struct {
	UID           int           // effective uid of this process
	Agent         *fsutil.Actor // user for work on the volume
	AgentUID      uint32        // uid of the agent's user
	AgentInPasswd bool          // the image has a user for the agent
	AgentName     string        // name of the agent's user, for messages
	InPod         bool          // the container is part of a pod
}

// StartRestrictions returns a message about each restriction from the way this container was started, the worst first. A
// container that runs as root, with Docker's default capabilities and a writable root file system, has none. StartRestrictions
// blocks on /proc and on the root file system.
func StartRestrictions(o ContainerFacts) []string {
	// Read the status of this thread, because the main thread (/proc/self) may act as the agent at this moment.
	runtime.LockOSThread()
	status := procstat.ReadStatus("thread-self")
	runtime.UnlockOSThread()
	return startRestrictions(o, status, ReadOnly("/"), !isRunWritable())
}

// startRestrictions returns the messages for given facts, so that tests can choose the facts.
func startRestrictions(o ContainerFacts, status procstat.Status, rootReadOnly, noRun bool) []string {
	var lines []string
	agent := o.AgentUID
	switch {
	case o.UID != 0 && o.AgentInPasswd && uint32(o.UID) != agent:
		lines = append(lines, fmt.Sprintf("started as uid %d, which is not %s: everything runs as that uid, and files of others stay as they are", o.UID, o.AgentName))
	case o.UID != 0:
		lines = append(lines, fmt.Sprintf("started as uid %d: no change of user or of file owners, and HERMES_UID and HERMES_GID have no effect", o.UID))
	case agent != 0 && !o.Agent.SwitchesIdentity():
		lines = append(lines, fmt.Sprintf("root may not become uid %[1]d (no CAP_SETUID and CAP_SETGID, or that uid is not mapped): services and the CMD cannot be started; add the two capabilities, or start with %[2]s", agent, ChooseAdvice(o.InPod, fmt.Sprintf("--user %d", agent), fmt.Sprintf("securityContext.runAsUser: %d", agent))))
	}
	if o.UID == 0 && agent != 0 && o.Agent.SwitchesIdentity() {
		for _, c := range []struct {
			bit        uint
			name, lost string
		}{
			{unix.CAP_KILL, "CAP_KILL", "processes of other users cannot be stopped"},
			{unix.CAP_CHOWN, "CAP_CHOWN", "files cannot be given to the agent's user"},
			{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "directories closed to root cannot be repaired"},
		} {
			if caps, ok := status.Number("CapEff", 16); ok && caps&(1<<c.bit) == 0 {
				lines = append(lines, "no "+c.name+": "+c.lost)
			}
		}
	}
	if rootReadOnly {
		lines = append(lines, "the root file system is read-only: /etc/passwd keeps the ids of the image")
	}
	if noRun {
		mount := "--tmpfs /run"
		if o.UID != 0 {
			mount += fmt.Sprintf(":uid=%d,mode=755", o.UID)
		}
		lines = append(lines, "/run cannot be written: the control socket is elsewhere, and there are no s6 directories; to have them, "+ChooseAdvice(o.InPod, "start with "+mount, "mount an emptyDir on /run"))
	}
	if v, ok := status.Number("NoNewPrivs", 16); ok && v == 1 {
		lines = append(lines, "no_new_privs is set: sudo and other set-user-ID programs do not work inside")
	}
	return lines
}

// ChooseAdvice returns the advice for this container: kubernetes in a pod, otherwise docker.
func ChooseAdvice(pod bool, docker, kubernetes string) string {
	if pod {
		return kubernetes
	}
	return docker
}

// isRunWritable reports whether this process can write to /run, or to the directories in it that the image made for its user.
func isRunWritable() bool {
	writable := func(path string) bool { return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil }
	return writable("/run") || writable(systemRuntimeDir) && writable("/run/service") && writable("/run/s6")
}
