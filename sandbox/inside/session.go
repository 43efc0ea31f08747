package inside

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/proc"
	"hinit/sandbox/mux"
)

// loginScriptTimeout limits how long a new session's login scripts may run.
const loginScriptTimeout = 30 * time.Second

// prepare returns the process to start for a request. The caller calls finish when that process has ended. If the request
// can't be executed, fault says why.
func (s *server) prepare(ch *channel) (spec proc.Spec, finish func(*mux.End), fault *mux.End) {
	open := ch.request
	spec = proc.Spec{Name: "sandbox", Argv: open.Argv, Dir: open.Dir, Env: s.env}
	if open.TTY && proc.Getenv(spec.Env, "TERM") == "" {
		spec.Env = proc.SetEnv(spec.Env, map[string]string{"TERM": "xterm"})
	}
	if open.Command == "" {
		if len(open.Argv) == 0 {
			return spec, nil, refusedEnd("no command")
		}
		spec.Env = proc.SetEnv(spec.Env, open.Env)
		return spec, func(*mux.End) {}, nil
	}
	for name := range open.Env {
		if !mux.ValidName(name) {
			return spec, nil, refusedEnd(fmt.Sprintf("%q is no name of a variable", name))
		}
	}
	return s.prepareShellLine(ch, spec)
}

// prepareShellLine does the work of prepare for a shell line, which runs in a session.
func (s *server) prepareShellLine(ch *channel, spec proc.Spec) (proc.Spec, func(*mux.End), *mux.End) {
	open := ch.request
	// The name of a session is also the name of a file.
	if name := open.Session; name == "" || len(name) > 64 || strings.ContainsAny(name, "/\x00") || name == "." || name == ".." {
		return spec, nil, refusedEnd(fmt.Sprintf("%q is no name of a session", open.Session))
	}
	shell := s.shell(open.Shell)
	dir, err := s.beginSession(ch, shell)
	spec.Dir = ""
	if err != nil { // The session's files can't be used, so each command gets its own login shell.
		c := mux.Script{Command: open.Command, Dir: cmp.Or(open.Dir, open.FirstDir), Env: open.Env}
		spec.Argv = slices.Insert(c.Argv(shell), 1, "-l")
		spec.Env = proc.SetEnv(proc.SetEnv(spec.Env, open.Forward), c.Environ())
		return spec, func(*mux.End) {}, nil
	}
	exports, where := filepath.Join(dir, mux.ExportsFile), filepath.Join(dir, mux.CwdFile)
	own := fmt.Sprintf(".%d.%d", os.Getpid(), s.commandCount.Add(1))
	c := mux.Script{
		StateDir: dir, Command: open.Command, Dir: cmp.Or(open.Dir, readPathFile(where), open.FirstDir), ExportsPath: exports + own, FinalDirPath: where + own, Env: open.Env,
	}
	spec.Argv, spec.Env = c.Argv(shell), proc.SetEnv(spec.Env, c.Environ())
	return spec, func(end *mux.End) {
		end.Dir = readPathFile(c.FinalDirPath)
		if end.Dir != "" {
			_ = os.Rename(c.ExportsPath, exports)
			_ = os.Rename(c.FinalDirPath, where)
			return
		}
		_ = os.Remove(c.ExportsPath) // Ignore the error: a killed command may not have written its variables.
		_ = os.Remove(c.FinalDirPath)
	}, nil
}

// shell returns the shell to use: name if it is set, otherwise bash if it exists, otherwise sh.
func (s *server) shell(name string) string {
	if _, err := proc.LookPath("bash", s.env); name == "" && err == nil {
		return "bash"
	}
	return cmp.Or(name, "sh")
}

// readPathFile returns the path that a shell has written to a file, or "" if the file is missing, empty or too long.
func readPathFile(file string) string {
	data, err := os.ReadFile(file)
	if err != nil || len(data) > unix.PathMax {
		return ""
	}
	return strings.TrimSuffix(string(data), "\n")
}

// beginSession returns the directory of a session. The files in it keep the variables and the working directory from one
// command to the next. For a new session, beginSession first runs a login shell that writes its state there. The files
// outlive this process, but not the container's /tmp.
func (s *server) beginSession(ch *channel, shell string) (string, error) {
	open := ch.request
	top, err := firstUsableDir(socketDirs()[1:], func(string) error { return nil })
	if err != nil {
		return "", err
	}
	dir := filepath.Join(top, "s-"+open.Session)
	base := filepath.Join(dir, mux.BaseFile)
	hasBegun := func() bool { _, err := os.Lstat(base); return err == nil }
	if hasBegun() {
		return dir, nil
	}
	s.sessionLock.Lock()
	defer s.sessionLock.Unlock()
	if hasBegun() {
		return dir, nil
	}
	if err := privateDir(dir); err != nil {
		return "", err
	}
	if filepath.IsAbs(open.FirstDir) { // continue in the directory that the session had in an earlier container
		_ = os.MkdirAll(open.FirstDir, 0o755)
	}
	temp := base + ".new"
	spec := proc.Spec{
		Name: "sandbox", Argv: []string{shell, "-l", "-c", mux.SessionSnapshotScript, shell, cmp.Or(open.FirstDir, "~"), temp, filepath.Join(dir, mux.CwdFile)},
		Env: proc.SetEnv(s.env, open.Forward),
	}
	ended := make(chan *run, 1)
	r, _, err := s.loop.spawn(spec, loginScriptTimeout, 0, false, func(r *run) { ended <- r })
	if err != nil {
		return "", err
	}
	select {
	case r = <-ended:
	case <-ch.ctx.Done():
		s.loop.endTree(r, 0, nil)
		<-ended
		return "", errors.New("cancelled")
	}
	if r.end.TimedOut || r.end.Code != 0 {
		_ = os.Remove(temp)
		return "", errors.New("the login shell failed")
	}
	if err := os.Rename(temp, base); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return dir, nil
}
