package units

import (
	"maps"
	"slices"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// limitsOf converts the resource limits of hinit.yaml to the limits that setrlimit(2) takes.
func limitsOf(limits map[string]config.ResourceLimit) (out []proc.Limit) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if resource, known := proc.LimitOf(name); known { // always known: the configuration was validated
			out = append(out, proc.Limit{Resource: resource, Soft: limits[name].Soft, Hard: limits[name].Hard})
		}
	}
	return out
}

// ioClasses maps the words of hinit.yaml to classes of ioprio_set(2).
var ioClasses = map[string]int{config.IORealtime: proc.IORealtime, config.IOBestEffort: proc.IOBestEffort, config.IOIdle: proc.IOIdle}

// setupOf returns the Setup of a process with the settings s. files are its environment files. They can't override the variables
// in own, which come from hinit.yaml or hinit. If agents is set, users other than root and the process's own user may change
// these files. If sealed is set, the process can't gain privileges from set-user-id programs.
func setupOf(s *config.ProcessSettings, files []string, own map[string]string, agents, sealed bool) proc.Setup {
	setup := proc.Setup{
		Nice: s.Priority.Nice, IOClass: ioClasses[s.Priority.IONice.Class], IOLevel: s.Priority.IONice.Level, CPUs: s.Priority.CPUAffinity, Umask: s.Umask, NoNewPrivs: sealed,
	}
	if len(files) > 0 {
		setup.EnvFiles, setup.ProtectedVars, setup.RefuseForeignFiles = slices.Clone(files), slices.Sorted(maps.Keys(own)), !agents
	}
	return setup
}

// envFiles returns the environment files of a service. The argument own lists the files from hinit.yaml. If agents is set, the
// service runs as the agent, so it also gets the secret files of the container. The secret files come first.
func (m *Maker) envFiles(own []string, agents bool) []string {
	if agents {
		return append(config.SecretFiles(m.Env()), own...)
	}
	return own
}

// oomAdjOf returns the number to add to hinit's own oom_score_adj for a service. 0 means the default for the service's kind. A
// configured oom_score takes precedence over the priority class. With a class, the result stays between the values of the CMD
// (700) and of hooks (900).
func oomAdjOf(p config.Priority, kind supervisor.Kind) int {
	shift := 0
	switch p.Class {
	case config.PriorityLow:
		shift = 45
	case config.PriorityHigh:
		shift = -20
	case config.PriorityCritical:
		shift = -45
	}
	if p.OOMScore == 0 && shift != 0 {
		return kind.OOMAdj() + shift
	}
	return p.OOMScore
}
