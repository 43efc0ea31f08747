// Package lookup finds the agent's user for clients of PID 1, which settles it at the boot. It changes nothing and owns no goroutine.
package lookup

import (
	"os"

	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// Agent finds the agent's user without a change, for the command line. It blocks on /etc. Root takes the ids that the container's
// variables ask for, as [boot.Identity] does: a read-only /etc keeps the image's.
func Agent(cfg *config.Config) (boot.Agent, error) {
	user, err := account.Lookup("", cfg.Agent.User)
	if err != nil && os.Geteuid() == 0 {
		return boot.Agent{}, boot.UnknownAgent(cfg.Agent.User, err)
	}
	if os.Geteuid() == 0 {
		user.Ask(os.Getenv)
	}
	return boot.NewAgent(user, err == nil), nil
}

// LogReader returns the identity that opens log files, for every program that shows them. The agent owns its log directory and can
// put links there, so root reads as the agent. plain says that the logs are a plain supervisor's, which belong to its own user.
func LogReader(plain bool, env func(string) (string, bool)) (*fsutil.Actor, error) {
	if os.Geteuid() != 0 || plain {
		return fsutil.Self(), nil
	}
	cfg, err := config.Load(config.Options{Env: env})
	if err != nil { // a mistake in the file hides no log: without the file the agent is the image's
		cfg, err = config.Load(config.Options{Text: []byte{}, Env: env})
	}
	if err != nil {
		return nil, err
	}
	agent, err := Agent(cfg)
	return agent.Actor, err
}
