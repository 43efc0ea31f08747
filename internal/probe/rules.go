package probe

import (
	"hinit/internal/config"
)

// RulesOf returns the rules of configured checks.
func RulesOf(checks []config.Check) []Rule {
	rules := make([]Rule, len(checks))
	for i, c := range checks {
		rules[i] = Rule{
			Name: c.Name, Kind: c.Kind, Period: c.Period, Timeout: c.Timeout, Delay: c.Delay,
			Success: c.Success, Failure: c.Failure, Jitter: c.Jitter, OnFailure: c.OnFailure,
		}
	}
	return rules
}
