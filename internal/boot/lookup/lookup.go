// Package lookup finds the agent's user for the commands of hinit, outside of PID 1. It changes nothing and owns no
// goroutine.
package lookup

import (
	"os"

	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// Agent returns the agent's user, without changing /etc. It blocks on /etc. If this process is root, the result has the ids
// that the container's variables ask for, as in the boot. A read-only /etc still has the ids of the image.
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

// LogReader returns the user whose rights a program must use to read log files. The agent owns the directory of the logs and can
// put links there, so root reads with the agent's rights. servicesOnly means that hinit supervises services without an agent;
// then the logs belong to the caller.
func LogReader(servicesOnly bool, env func(string) (string, bool)) (*fsutil.Actor, error) {
	if os.Geteuid() != 0 || servicesOnly {
		return fsutil.ProcessActor(), nil
	}
	cfg, err := config.Load(config.Options{Env: env})
	if err != nil { // an invalid configuration must not hide the logs, so assume the agent of the image
		cfg, err = config.Load(config.Options{Content: []byte{}, Env: env})
	}
	if err != nil {
		return nil, err
	}
	agent, err := Agent(cfg)
	return agent.Actor, err
}
