package units

import (
	"hinit/internal/config"
	"hinit/supervisor"
)

// oomShift maps each priority class to the number that is added to the usual oom_score_adj of a service. The results all stay
// between the CMD (700) and hooks (900).
var oomShift = map[string]int{config.PriorityLow: 45, config.PriorityHigh: -20, config.PriorityCritical: -45}

// oomOf returns the number that is added to hinit's own oom_score_adj for a service, or 0 for the usual number of its kind. A
// configured oom_score takes precedence over the priority class.
func oomOf(p config.Priority, kind supervisor.Kind) int {
	if shift := oomShift[p.Class]; p.OOMScore == 0 && shift != 0 {
		return kind.OOMAdj() + shift
	}
	return p.OOMScore
}
