package config

import (
	"os"
	"strings"
)

// plainDefaults returns the built-in values of a plain supervisor. Its home is the working directory.
func plainDefaults() *Config {
	c := defaults()
	c.plain, c.Home = true, "/"
	if wd, err := os.Getwd(); err == nil {
		c.Home = wd
	}
	c.Agent = Agent{Cwd: "{home}", Ready: ReadyUp, Env: map[string]string{}, Setup: newSetup()}
	c.Restart.ParkOn, c.Restart.ImmediateOn = []int{}, []int{} // these codes mean something to the agent
	c.Logs.Dir = "{home}/logs"
	c.Boot.Hooks = nil
	return c
}

// plainService makes a new service one of a plain supervisor: it has the caller's environment, and a log file only where the
// configuration says where log files go.
func (l *loader) plainService(s *Service) {
	s.Env = map[string]string{}
	_, s.Log = l.cfg.origins["logs.dir"]
}

// refuseAgent reports the keys that mean something only where there is an agent.
func (l *loader) refuseAgent() {
	for _, key := range sortedKeys(l.cfg.origins) {
		for _, prefix := range []string{"agent.", "profiles.", "logs.profiles."} {
			if strings.HasPrefix(key, prefix) {
				l.problems.from(l.cfg.origins[key], "cannot set %s: hinit run hosts no agent; remove the key, or use hinit init", key)
			}
		}
	}
}

// refuseAgentHole reports a template that names the agent's program.
func (l *loader) refuseAgentHole(s *Service, prefix string) {
	check := func(key, text string) {
		if strings.Contains(text, "{"+holeAgent+"}") && !strings.Contains(text, "{{"+holeAgent+"}}") {
			l.problems.from(l.cfg.origins[prefix+key], "cannot use {agent} in %s%s: hinit run hosts no agent", prefix, key)
		}
	}
	for _, word := range s.Command {
		check("command", word)
	}
	for _, name := range sortedKeys(s.Env) {
		check("env", s.Env[name])
	}
}
