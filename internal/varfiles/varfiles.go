// Package varfiles knows the files that a service reads variables from when it starts, and finds out which of them have changed since. It
// reads times of files only, for clients of PID 1 as their own user. It owns no goroutine.
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

// Of returns the files of a service: of env_file, and of the variables NAME_FILE in the container's environment.
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

// Changed returns the time of the youngest of files if a service that is up has begun before it, else the zero time. A directory is as
// young as the youngest file in it.
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
			file = file[i:] // after NAME= or -
		}
		look(file)
		entries, _ := os.ReadDir(file) // most are files
		for _, e := range entries {
			look(filepath.Join(file, e.Name()))
		}
	}
	if began, known := start(s.PID); !known || !youngest.After(began) {
		return time.Time{}
	}
	return youngest
}

// start returns when a process began.
func start(pid int) (began time.Time, known bool) {
	var now unix.Timespec
	st, err := procstat.Read(pid)
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return began, false
	}
	return time.Now().Add(time.Duration(st.Start)*time.Second/procstat.Hertz - time.Duration(now.Nano())), true
}
