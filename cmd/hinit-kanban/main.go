// Command hinit-kanban is the task board that agent profiles share, and the dispatcher of its tasks; it is the program behind
// `hinit kanban`. If root starts it, it leaves root's terminal and becomes the agent's user. Under the name hinit-limits, it sets
// resource limits and then executes the worker of a task. It owns no goroutine.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/samber/lo"

	"hinit/internal/account"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/internal/proc/limits"
	"hinit/kanban"
	"hinit/kanban/cli"
	"hinit/shim/agentuser"
	"hinit/shim/identity"
)

func main() {
	if filepath.Base(os.Args[0]) == proc.LimitsName {
		code, err := limits.Main(os.Args)
		fmt.Fprintln(os.Stderr, "hinit-kanban:", err)
		os.Exit(code)
	}
	if err := becomeAgent(kanban.Root(os.Getenv, os.Getenv("HOME"))); err != nil {
		fmt.Fprintln(os.Stderr, "hinit-kanban:", err)
		os.Exit(1)
	}
	os.Exit(cmdline.RunWithOutput(func(out io.Writer) int { return cli.NewTerminal(out).Main(os.Args[1:]) }))
}

// becomeAgent changes from root to the agent's user, because the board and its directories belong to the agent. As root, this
// program would follow symbolic links that the agent has made, and signal any process whose pid the agent writes to the board.
// If the agent's user does not exist, the process becomes the owner of home, the directory of the board. It stays root if root
// owns home, or if home is missing. becomeAgent may block while it reads /etc and the data volume.
func becomeAgent(home string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	cfg, err := config.Load(config.Options{Env: os.LookupEnv})
	if err != nil {
		return fmt.Errorf("cannot find the agent's user, as which root works on the board: %w", err)
	}
	user, err := account.Lookup("", cfg.Agent.User)
	if errors.Is(err, account.ErrNotFound) {
		var st syscall.Stat_t
		if err := syscall.Stat(home, &st); err != nil || st.Uid == 0 {
			return nil // the board doesn't exist, or root owns it
		}
		user, err = account.User{UID: st.Uid, GID: st.Gid, Groups: []uint32{st.Gid}, Home: home}, nil
	}
	if err != nil || user.UID == 0 {
		return err
	}
	groups := lo.Map(user.Groups, func(g uint32, _ int) int { return int(g) })
	// The process may execute the agent's program next, which must neither type into root's shell nor get root's files. The
	// system calls below change all threads. The uid comes last, because afterwards the process can't change its groups.
	if err := errors.Join(agentuser.CloseOnExec(), identity.LeaveTerminal(), syscall.Setgroups(groups), syscall.Setgid(int(user.GID)),
		syscall.Setuid(int(user.UID)), os.Setenv("HOME", user.Home)); err != nil {
		return fmt.Errorf("cannot work on the board as user %d: %w; run it as that user", user.UID, err)
	}
	return nil
}
