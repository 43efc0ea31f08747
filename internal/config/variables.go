package config

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"hinit/internal/nearest"
)

// nonKeyVariables lists the environment variables of hinit that set no key of hinit.yaml (docs/reference/environment.md),
// without the prefix HINIT_.
var nonKeyVariables = []string{
	"KANBAN_HOST", "KANBAN_LEAVE_SECONDS",
	"CONFIG", "ALLOW_ANY_UID", "S6", "SHIM_NATIVE", "STANDBY", "KANBAN", "LEASE", "LEASE_CREDENTIALS", "LEASE_DURATION", "LEASE_IDENTITY", "LEASE_NAME", "LEASE_NAMESPACE", "SANDBOX", "SANDBOX_ALLOW", "SANDBOX_SOCKET", "SANDBOX_STATE", "SANDBOX_USER", "SANDBOX_IMAGES", "SANDBOX_ROOT", "SANDBOX_ROOTS", "SANDBOX_CREDENTIALS",
	"SANDBOX_NETWORKS", "SANDBOX_RUNTIMES", "SANDBOX_MEMORY", "SANDBOX_CPUS", "SANDBOX_MOST", "SANDBOX_RUNTIME", "SANDBOX_ENGINE", "SANDBOX_SHELL", "SANDBOX_HELPER", "SANDBOX_TOKEN", "WEB", "WEB_LISTEN", "WEB_TOKEN_FILE", "WEB_TOKEN", "WEB_BASE_PATH", "WEB_HOST",
	"FLEET_ADDRESS", "FLEET_HOST", "FLEET_NAMESPACE", "FLEET_POOL", "FLEET_TEMPLATE", "FLEET_UID", "FORWARD", "FORWARD_TO", "FORWARD_AUTHORIZATION", "FORWARD_STATE", "ACTIONS_STATE", "EVENT", "SERVICE", "PROFILE", "RUN", "HANDOVER", "HALTED", "FAULTS",
}

// UnknownVariables returns a warning for each unknown variable in environ that begins with HINIT_. Such a name is probably
// misspelt.
func UnknownVariables(environ []string) (warnings []string) {
	const prefix = "HINIT_"
	known := slices.Clone(nonKeyVariables)
	for _, k := range Keys[Config]() {
		if own, ours := strings.CutPrefix(k.Env, prefix); ours {
			known = append(known, own)
		}
	}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		own, ours := strings.CutPrefix(name, prefix)
		if !ours || slices.Contains(known, own) || strings.HasPrefix(own, "SANDBOX_KUBERNETES_") {
			continue
		}
		warning := fmt.Sprintf("%s has no effect: hinit knows no such variable", name)
		if near := nearest.Word(own, known); near != "" {
			warning += "; did you mean " + prefix + near + "?"
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return warnings
}

// IsTruthy reports whether s is 1, true or yes, in upper or lower case. The agent's command line reads switches such as
// HERMES_GATEWAY_NO_SUPERVISE in this way.
func IsTruthy(s string) bool {
	return slices.Contains([]string{"1", "true", "yes"}, strings.ToLower(s))
}

// IsShellTruthy reports whether s is 1, true, TRUE, True, yes, YES or Yes; "tRuE" and "on" are false. The image's shell scripts
// read switches such as HERMES_DASHBOARD in this way.
func IsShellTruthy(s string) bool {
	return slices.Contains([]string{"1", "true", "TRUE", "True", "yes", "YES", "Yes"}, s)
}

// IsFalse reports whether s is empty or a usual word for "off". Callers warn about other values that are not true.
func IsFalse(s string) bool {
	return slices.Contains([]string{"", "0", "false", "no", "off", "n", "f"}, strings.ToLower(s))
}

const (
	fileVariableSuffix = "_FILE"
	// secretsDir is the directory in which container engines mount secrets. Only a variable NAME_FILE with a path in secretsDir
	// names a secret. Other such variables, for example SSL_CERT_FILE, belong to the program.
	secretsDir = "/run/secrets/"
)

// SecretFiles returns NAME=PATH for each variable NAME_FILE in environ whose value is a path below /run/secrets. It ignores
// hinit's own variables, and NAME_FILE if NAME is also set.
func SecretFiles(environ []string) (files []string) {
	for _, v := range environ {
		file, at, _ := strings.Cut(v, "=")
		name, is := strings.CutSuffix(file, fileVariableSuffix)
		isSet := func(other string) bool { return len(other) > len(name)+1 && strings.HasPrefix(other, name+"=") }
		if is && name != "" && !strings.HasPrefix(name, "HINIT_") && strings.HasPrefix(path.Clean(at), secretsDir) && !slices.ContainsFunc(environ, isSet) {
			files = append(files, name+"="+path.Clean(at))
		}
	}
	slices.Sort(files)
	return files
}
