package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// agentID is the user that services of hinit run as.
const agentID = 10000

// patience is how long any one thing may take.
const patience = 60 * time.Second

// site is where a peer runs its services: a directory of its own and what is to run.
type site struct {
	dir      string
	services []string      // their names
	sleeper  string        // the program of each service, a copy of sleep(1), so that its starts can be watched
	command  []string      // what each service runs
	first    []string      // what the first one runs instead, if anything
	fast     bool          // restart delays at the peer's minimum
	asS6     bool          // hinit answers as s6 too, as it does in the image of the agent
	budget   time.Duration // for the whole stop, where a peer has such a thing; 0 is its default
}

// commandOf is what a service runs.
func (s *site) commandOf(service string) []string {
	if len(s.first) > 0 && service == s.services[0] {
		return s.first
	}
	return s.command
}

// script is a run script for that service, as s6, runit and nitro want it.
func (s *site) script(service string) string {
	return "#!/bin/sh\nexec 2>&1\nexec " + strings.Join(quoted(s.commandOf(service)), " ") + "\n"
}

func quoted(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return out
}

// path is a path in the site's directory.
func (s *site) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// write makes a file in the site's directory, and the directories above it.
func (s *site) write(name, text string, mode os.FileMode) error {
	path := s.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), mode)
}

// give makes everything in a directory a user's.
func (s *site) give(dir string, id int) error {
	return filepath.WalkDir(s.path(dir), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, id, id))
	})
}

// newSite makes a directory for n services.
func (b *bench) newSite(n int) (*site, error) {
	b.sites++
	s := &site{dir: filepath.Join(b.work, strconv.Itoa(b.sites)), asS6: b.asS6}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	s.sleeper = s.path("sleeper")
	if err := copyFile(s.sleeper, b.sleep); err != nil {
		return nil, err
	}
	s.command = []string{s.sleeper, "infinity"}
	for i := range n {
		s.services = append(s.services, serviceName(i))
	}
	return s, nil
}

func serviceName(i int) string { return fmt.Sprintf("s%04d", i) }

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

// instance is a peer at work, as process 1 of a PID namespace of its own.
type instance struct {
	*site
	peer    peer
	cmd     *exec.Cmd
	watch   *watch
	began   time.Time
	console string // file with what it printed
	ended   chan struct{}

	last        started // the last start that was waited for
	more        int     // services added since
	zombiesLeft int
	all         *running // it is one of those
}

// start makes the peer process 1 of new namespaces. It returns when the peer has begun; what it starts is for the caller to wait
// for.
func (b *bench) start(p peer, s *site) (*instance, error) {
	if err := p.prepare(s); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name(), err)
	}
	return b.startPrepared(p, s)
}

// startPrepared starts a candidate in a site that is prepared, or that it has run in before.
func (b *bench) startPrepared(p peer, s *site) (*instance, error) {
	if b.running.over() {
		return nil, errInterrupted
	}
	argv, env := p.command(s)
	i := &instance{site: s, peer: p, console: s.path("console"), ended: make(chan struct{})}
	var err error
	if i.watch, err = watchStarts(s.sleeper); err != nil {
		return nil, err
	}
	console, err := os.Create(i.console)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	goRead, goWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer goRead.Close()
	defer goWrite.Close()
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyRead.Close()
	i.cmd = exec.Command(b.self, append([]string{roleContain}, argv...)...)
	i.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/"}, env...)
	i.cmd.Dir = s.dir
	i.cmd.Stdout, i.cmd.Stderr = console, console
	i.cmd.ExtraFiles = []*os.File{goRead, readyWrite}
	i.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setsid: true,
	}
	err = i.cmd.Start()
	readyWrite.Close()
	if err != nil {
		i.watch.close()
		return nil, err
	}
	go func() {
		_ = i.cmd.Wait() // how it ends is not what is measured
		close(i.ended)
	}()
	i.all = &b.running
	if !i.all.add(i.cmd.Process, i.ended) {
		i.kill()
		return nil, errInterrupted
	}
	if n, err := readyRead.Read(make([]byte, 1)); n != 1 {
		defer i.kill()
		return nil, i.failure(fmt.Errorf("it could not be started (%w)", err))
	}
	i.began = time.Now()
	if _, err := goWrite.Write([]byte{0}); err != nil {
		defer i.kill()
		return nil, i.failure(err)
	}
	return i, nil
}

var errInterrupted = errors.New("interrupted")

// pid is process 1 as it is known out here.
func (i *instance) pid() int { return i.cmd.Process.Pid }

// kill ends the namespace at once, and removes the site.
func (i *instance) kill() {
	_ = i.cmd.Process.Kill() // it may have ended
	<-i.ended
	i.all.remove(i.cmd.Process)
	i.watch.close()
	_ = os.RemoveAll(i.dir) // the whole work directory is removed later
}

// failure adds what the peer printed last.
func (i *instance) failure(err error) error {
	text, _ := os.ReadFile(i.console)
	if len(text) > 600 {
		text = text[len(text)-600:]
	}
	return fmt.Errorf("%s with %d services: %w\n%s", i.peer.name(), len(i.services), err, text)
}

// alive tells whether process 1 is.
func (i *instance) alive() bool {
	select {
	case <-i.ended:
		return false
	default:
		return true
	}
}

// booted waits until all services run, and returns how long that took.
func (i *instance) booted() (time.Duration, error) {
	var err error
	if i.last, err = i.watch.next(len(i.services), i); err != nil {
		return 0, i.failure(err)
	}
	return i.last.at.Sub(i.began), nil
}

// boot is booted without the time that it took.
func (i *instance) boot() error {
	_, err := i.booted()
	return err
}

// until polls until what it waits for is so.
func until(what string, every time.Duration, so func() (bool, error)) error {
	end := time.Now().Add(patience)
	for {
		ok, err := so()
		if err != nil || ok {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %s", what, patience)
		}
		<-time.After(every)
	}
}

// settle waits until the loggers run too and nothing is started or computed any more.
func (i *instance) settle() error {
	var last usage
	quiet := 0
	return until("coming to rest", 120*time.Millisecond, func() (bool, error) {
		if !i.alive() {
			return false, i.failure(errors.New("it has ended"))
		}
		now, err := i.usage()
		if err != nil {
			return false, err
		}
		if now.processes == last.processes && now.services == last.services && now.cpu-last.cpu < 3*time.Millisecond {
			quiet++
		} else {
			quiet = 0
		}
		last = now
		return quiet >= 3 && now.services == len(i.services), nil
	})
}

// terminate sends TERM to process 1 and waits until it is gone.
func (i *instance) terminate(signal syscall.Signal) (time.Duration, error) {
	begin := time.Now()
	if err := i.cmd.Process.Signal(signal); err != nil {
		return 0, err
	}
	select {
	case <-i.ended:
		return time.Since(begin), nil
	case <-time.After(patience):
		return 0, i.failure(errors.New("it does not end"))
	}
}
