package personality

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/shim/agentuser"
)

const (
	// variable turns the s6 personality on or off, for any image.
	variable = "HINIT_S6"
	// commandDir holds the tools of s6 in an image that was made for s6.
	commandDir = "/command"
	// comm is the name of process 1 by which the agent's commands recognize s6.
	comm = "s6-svscan"
)

// Wanted reports whether this init acts as s6: because of the environment, or as PID 1 of an image made for s6.
func Wanted() bool {
	if v, set := os.LookupEnv(variable); set && v != "" {
		return config.IsTruthy(v)
	}
	made := false
	_ = blocking.Do(blocking.Foreign, func() error {
		info, err := os.Stat(commandDir)
		made = err == nil && info.IsDir()
		return nil
	})
	return made && os.Getpid() == 1
}

// Path returns the PATH of all processes that the init starts as the agent's user.
func Path(home string) string {
	path := agentuser.Path(os.Getenv("PATH"), home)
	if Wanted() {
		path = withCommands(path)
	}
	return path
}

// withCommands adds the directories that s6 puts at the beginning of PATH.
func withCommands(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/bin", "/usr/bin", commandDir} {
		if !slices.Contains(dirs, dir) {
			dirs = append([]string{dir}, dirs...)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
