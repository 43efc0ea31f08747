package units

import (
	"hinit/internal/config"
	"hinit/supervisor"
)

// oomOf returns the number that is added to hinit's own oom_score_adj for a service, or 0 for the usual number of its kind. A
// configured oom_score takes precedence over the priority class. All results stay between the CMD (700) and hooks (900).
func oomOf(p config.Priority, kind supervisor.Kind) int {
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
