package boot

import (
	"fmt"

	"hinit/internal/config"
)

// CheckStartUser refuses to run as a user that is neither root nor the agent, because such a user can't write to the data volume.
// See the contract, section 2.1, step 1, and section 3, step 1. uid is the user that the container was started as. If known is
// false, the image has no user for the agent, and every uid is admitted. HINIT_ALLOW_ANY_UID admits every uid, for platforms that
// choose the uid themselves. In a pod, CheckStartUser also accepts the uids that OpenShift assigns.
//
// The error has two lines, each with a prefix that people search for in the log. Print it on standard error and exit with 1.
func CheckStartUser(uid int, agentUID uint32, known bool, env func(string) (string, bool)) error {
	if uid == 0 || !known || int64(uid) == int64(agentUID) || config.IsShellTruthy(EnvOf(env, "HINIT_ALLOW_ANY_UID")) ||
		InPod(env) && uid >= platformUID {
		return nil
	}
	return &admitError{uid, agentUID, InPod(env)}
}

// platformUID is the lowest uid that counts as assigned by a platform: OpenShift's ranges begin at 1000000000.
const platformUID = 1_000_000

type admitError struct {
	uid   int
	agent uint32
	pod   bool
}

func (e *admitError) Error() string {
	if e.pod {
		return fmt.Sprintf(`[stage2] ERROR: the pod runs as uid %[1]d, but the agent's user is %[2]d; set securityContext.runAsUser and fsGroup to %[2]d
[hermes] ERROR: the pod runs as uid %[1]d; set securityContext.runAsUser and fsGroup to %[2]d, or set HINIT_ALLOW_ANY_UID=1 to run as %[1]d with data that it owns`,
			e.uid, e.agent)
	}
	return fmt.Sprintf(`[stage2] ERROR: container started with --user %[1]d, but the agent's user is %[2]d; start it as root and set HERMES_UID and HERMES_GID (or PUID and PGID) to the ids that the data is to have
[hermes] ERROR: container started with --user %[1]d; leave --user away and set HERMES_UID and HERMES_GID (or PUID and PGID), use --user %[2]d, or set HINIT_ALLOW_ANY_UID=1 to run as %[1]d with data that it owns`,
		e.uid, e.agent)
}
