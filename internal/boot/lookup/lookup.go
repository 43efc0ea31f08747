// Package lookup determines the agent's user for clients of PID 1. It changes nothing and owns no goroutine. PID 1 itself
// updates the user at boot.
package lookup

import (
	"os"

	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// Agent determines the agent's user for commands of hinit, without changing /etc. It blocks on /etc. For root it uses the
// ids that the container's variables ask for, as the boot does: a read-only /etc still has the image's ids.
func Agent(cfg *config.Config) (boot.Agent, error) {
	user, err := account.Lookup("", cfg.Agent.User)
	if err != nil && os.Geteuid() == 0 {
		return boot.Agent{}, boot.UnknownAgent(cfg.Agent.User, err)
	}
	if os.Geteuid() == 0 {
		user.ApplyRequestedIDs(os.Getenv)
	}
	return boot.NewAgent(user, err == nil), nil
}

// LogReader returns the identity with which programs must open log files to show them. The agent owns its log directory and
// can put links there, so root must read the logs as the agent. plain is true if hinit supervises services without an agent.
// Then the logs belong to this process's own user.
func LogReader(plain bool, env func(string) (string, bool)) (*fsutil.Actor, error) {
	if os.Geteuid() != 0 || plain {
		return fsutil.Self(), nil
	}
	cfg, err := config.Load(config.Options{Env: env})
	if err != nil { // an invalid configuration must not hide the logs, so assume the image's agent
		cfg, err = config.Load(config.Options{Text: []byte{}, Env: env})
	}
	if err != nil {
		return nil, err
	}
	agent, err := Agent(cfg)
	return agent.Actor, err
}
