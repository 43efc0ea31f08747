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
	// variable is the environment variable that turns the s6 personality on or off in every image.
	variable = "HINIT_S6"
	// commandDir is the directory of the s6 tools in an image that was made for s6.
	commandDir = "/command"
	// comm is the process name of PID 1, by which the agent's commands recognize s6.
	comm = "s6-svscan"
)

// ActsAsS6 reports whether this init must act as s6. If HINIT_S6 is set, it decides. If not, the init acts as s6 if it is PID
// 1 in an image made for s6.
func ActsAsS6() bool {
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

// Path returns the PATH for all processes that this init starts as the agent's user. home is the user's home directory.
func Path(home string) string {
	path := agentuser.Path(os.Getenv("PATH"), home)
	if ActsAsS6() {
		path = withCommands(path)
	}
	return path
}

// withCommands adds the directories that s6 puts at the front of PATH, if they are missing.
func withCommands(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/bin", "/usr/bin", commandDir} {
		if !slices.Contains(dirs, dir) {
			dirs = append([]string{dir}, dirs...)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
