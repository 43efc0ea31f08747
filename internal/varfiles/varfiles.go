// Package varfiles finds the environment files from which a service reads variables when it starts, and checks whether they have
// changed since. It compares modification times only. Clients of PID 1 use it with their own permissions. It starts no goroutine.
package varfiles

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/procstat"
)

// Of returns the paths of a service's environment files: the files in env_file, and the files to which variables NAME_FILE in
// environ refer. environ is the container's environment.
func Of(cfg *config.Config, s *client.Service, environ []string) []string {
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

// Changed returns the newest modification time among files, if the service s is running and was started before that time.
// Otherwise it returns the zero time. For a directory, it uses the newest time of the directory itself and the files in it.
func Changed(s *client.Service, files []string) time.Time {
	var youngest time.Time
	if s.State != client.StateUp || len(files) == 0 {
		return youngest
	}
	look := func(path string) {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(youngest) {
			youngest = info.ModTime()
		}
	}
	for _, file := range files {
		if i := strings.IndexByte(file, '/'); i > 0 {
			file = file[i:] // remove the prefix "NAME=" or "-"
		}
		look(file)
		entries, _ := os.ReadDir(file) // fails for an ordinary file
		for _, e := range entries {
			look(filepath.Join(file, e.Name()))
		}
	}
	if began, known := start(s.PID); !known || !youngest.After(began) {
		return time.Time{}
	}
	return youngest
}

// start returns the start time of the process pid. known is false if the time can't be determined.
func start(pid int) (began time.Time, known bool) {
	var now unix.Timespec
	st, err := procstat.Read(pid)
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return began, false
	}
	return time.Now().Add(time.Duration(st.Start)*time.Second/procstat.Hertz - time.Duration(now.Nano())), true
}
