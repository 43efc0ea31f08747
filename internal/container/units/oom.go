package units

import (
	"hinit/internal/config"
	"hinit/supervisor"
)

// oomShift says by how much each class of priority moves the oom_score_adj of a service. All stay between the CMD (700) and
// hooks (900).
var oomShift = map[string]int{config.PriorityLow: 45, config.PriorityHigh: -20, config.PriorityCritical: -45}

// oomOf returns what is added to the oom_score_adj of hinit for a service; 0 stands for the usual value of its kind. oom_score
// of the configuration takes precedence over the class of priority.
func oomOf(p config.Priority, kind supervisor.Kind) int {
	if shift := oomShift[p.Class]; p.OOMScore == 0 && shift != 0 {
		return kind.OOMAdj() + shift
	}
	return p.OOMScore
}
