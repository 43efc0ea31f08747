// Package varfiles finds the environment files from which a service gets variables at its start. It also finds out whether they
// have changed since then, so that commands can advise a restart. It compares only modification times. Clients of PID 1 use
// this package with their own permissions. It starts no goroutine.
package varfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/procstat"
	"hinit/internal/trust"
	"hinit/internal/wholefile"
)

// Paths returns the paths of a service's environment files: the files in env_file, and the files named by variables NAME_FILE in
// environ, the container's environment.
func Paths(cfg *config.Config, s *client.Service, environ []string) []string {
	if own, is := cfg.Services[s.Name]; is {
		if own.User != "" && own.User != cfg.Agent.User {
			environ = nil
		}
		return append(config.SecretFiles(environ), own.EnvFile...)
	}
	if s.Profile == "" {
		return nil
	}
	home := cfg.Home
	if s.Profile != "default" {
		home = filepath.Join(home, "profiles", s.Profile)
	}
	vars := map[string]string{"profile": s.Profile, "profile_home": home}
	return append(config.SecretFiles(environ), cfg.Expand(cfg.ProfileOf(s.Profile).EnvFile, vars)...)
}

// maxDirFiles is the maximum number of files that ChangedAt examines in a directory.
const maxDirFiles = 4096

// ChangedAt returns the newest modification time of files, if it is later than the start of the service s and s is running.
// Otherwise it returns the zero time. For a directory, it uses the newest time of the directory and its files. As root, it skips
// a file behind a symbolic link that a user other than root may have made.
func ChangedAt(s *client.Service, files []string) time.Time {
	var youngest time.Time
	if s.State != client.StateUp || len(files) == 0 {
		return youngest
	}
	judge := trust.Rule(nil)
	if os.Geteuid() == 0 {
		judge = trust.RootOnly
	}
	examine := func(path string) {
		st, violation, err := trust.Stat(path, judge)
		if at := time.Unix(st.Mtim.Unix()); err == nil && (violation == nil || !violation.Link) && at.After(youngest) {
			youngest = at
		}
	}
	for _, file := range files {
		if i := strings.IndexByte(file, '/'); i > 0 {
			file = file[i:] // remove the prefix "NAME=" or "-"
		}
		examine(file)
		fd, err := wholefile.OpenForRoot(file) // OpenForRoot fails for an ordinary file
		if err != nil {
			continue
		}
		dir, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
		unix.Close(fd)
		if err != nil {
			continue
		}
		names, _ := dir.Readdirnames(maxDirFiles)
		_ = dir.Close()
		for _, name := range names {
			examine(filepath.Join(file, name))
		}
	}
	if st, err := procstat.Read(s.PID); err != nil || !youngest.After(procstat.StartedAt(st.Start)) {
		return time.Time{}
	}
	return youngest
}
