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

// agentID is the user ID of hinit's services.
const agentID = 10000

// patience limits every wait.
const patience = 60 * time.Second

// site is the directory in which a peer runs its services, with their description.
type site struct {
	dir      string
	services []string
	sleeper  string
	command  []string      // Command of each service.
	first    []string      // Command of the first service, if it differs.
	fast     bool          // Whether to use the peer's shortest restart delays.
	asS6     bool          // Whether hinit also answers as s6, as in the agent's image.
	budget   time.Duration // Stop timeout, if the peer has one; 0: its default.
}

func (s *site) commandOf(service string) []string {
	if len(s.first) > 0 && service == s.services[0] {
		return s.first
	}
	return s.command
}

// runScript returns a service's run script for s6, runit and nitro.
func (s *site) runScript(service string) string {
	return "#!/bin/sh\nexec 2>&1\nexec " + strings.Join(quoted(s.commandOf(service)), " ") + "\n"
}

func quoted(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return out
}

func (s *site) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *site) write(name, text string, mode os.FileMode) error {
	path := s.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), mode)
}

// chownAll changes the owner of a directory tree.
func (s *site) chownAll(dir string, id int) error {
	return filepath.WalkDir(s.path(dir), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, id, id))
	})
}

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

// instance is a running peer, as process 1 of its own PID namespace.
type instance struct {
	*site
	peer    peer
	cmd     *exec.Cmd
	watch   *watch
	began   time.Time
	console string // File with the peer's output.
	ended   chan struct{}

	last        started // Last awaited start.
	more        int     // Number of services that were added since the start.
	zombiesLeft int
	all         *running // All running instances.
}

// start starts a peer as process 1 of new namespaces. It does not wait for the services.
func (b *bench) start(p peer, s *site) (*instance, error) {
	if err := p.prepare(s); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name(), err)
	}
	return b.startPrepared(p, s)
}

// startPrepared starts a peer in a prepared or already used site.
func (b *bench) startPrepared(p peer, s *site) (*instance, error) {
	if b.running.hasEnded() {
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
		_ = i.cmd.Wait() // The peer's exit code does not matter.
		close(i.ended)
	}()
	i.all = &b.running
	if !i.all.add(i.cmd.Process, i.ended) {
		i.kill()
		return nil, errInterrupted
	}
	if n, err := readyRead.Read(make([]byte, 1)); n != 1 {
		defer i.kill()
		return nil, i.withConsole(fmt.Errorf("it could not be started (%w)", err))
	}
	i.began = time.Now()
	if _, err := goWrite.Write([]byte{0}); err != nil {
		defer i.kill()
		return nil, i.withConsole(err)
	}
	return i, nil
}

var errInterrupted = errors.New("interrupted")

func (i *instance) pid() int { return i.cmd.Process.Pid }

// kill kills everything in the namespace and removes the site.
func (i *instance) kill() {
	_ = i.cmd.Process.Kill() // The process may have ended.
	<-i.ended
	i.all.remove(i.cmd.Process)
	i.watch.close()
	_ = os.RemoveAll(i.dir) // Otherwise the removal of the work directory removes it later.
}

func (i *instance) withConsole(err error) error {
	text, _ := os.ReadFile(i.console)
	if len(text) > 600 {
		text = text[len(text)-600:]
	}
	return fmt.Errorf("%s with %d services: %w\n%s", i.peer.name(), len(i.services), err, text)
}

func (i *instance) alive() bool {
	select {
	case <-i.ended:
		return false
	default:
		return true
	}
}

// timeBoot waits until all services run, and returns the time since the start.
func (i *instance) timeBoot() (time.Duration, error) {
	var err error
	if i.last, err = i.watch.next(len(i.services), i); err != nil {
		return 0, i.withConsole(err)
	}
	return i.last.at.Sub(i.began), nil
}

func (i *instance) awaitBoot() error {
	_, err := i.timeBoot()
	return err
}

// until polls so until it returns true. Errors name the condition by what.
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

// awaitRest waits until the loggers run and the peer is idle.
func (i *instance) awaitRest() error {
	var last usage
	quiet := 0
	return until("coming to rest", 120*time.Millisecond, func() (bool, error) {
		if !i.alive() {
			return false, i.withConsole(errors.New("it has ended"))
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

// terminate signals process 1, and returns how long it took to exit.
func (i *instance) terminate(signal syscall.Signal) (time.Duration, error) {
	begin := time.Now()
	if err := i.cmd.Process.Signal(signal); err != nil {
		return 0, err
	}
	select {
	case <-i.ended:
		return time.Since(begin), nil
	case <-time.After(patience):
		return 0, i.withConsole(errors.New("it does not end"))
	}
}
