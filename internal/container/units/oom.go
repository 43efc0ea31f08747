package units

import (
	"hinit/internal/config"
	"hinit/supervisor"
)

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
