package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// agentOrder is the input of the role that measures agent commands.
type agentOrder struct {
	PID    int      `json:"pid"` // PID of the container's process 1.
	Dir    string   `json:"dir"` // Directory for the files of the image.
	Rounds int      `json:"rounds"`
	Env    []string `json:"env"`
	Hinit  string   `json:"hinit"`
	Shim   string   `json:"shim"`
}

// passedToAgent is the exit code of the agent's stand-in. It shows that hinit passed the command on
// instead of answering it.
const passedToAgent = 42

// measureAgentCommands measures M12: commands about gateways that hinit answers in place of the agent, from the start of a process to
// its end, as docker exec starts them. The gateways run already, so that only the command takes time.
func (b *bench) measureAgentCommands() error {
	hs := candidatesOf[hinit](b)
	if len(hs) == 0 {
		return nil
	}
	s, err := b.newSite(10)
	if err != nil {
		return err
	}
	s.asS6 = true
	i, err := b.start(hs[0], s)
	if err != nil {
		return err
	}
	defer i.kill()
	if _, err := i.timeBoot(); err != nil {
		return err
	}
	if err := i.awaitRest(); err != nil {
		return err
	}
	order := agentOrder{PID: i.pid(), Dir: s.path("image"), Rounds: 4 * b.runs, Env: hs[0].environment(s), Hinit: b.hinit, Shim: b.shim}
	var took map[string][]float64
	if err := b.askRole(roleAgent, order, &took); err != nil {
		return err
	}
	if len(took[gatewayStatus]) == 0 {
		b.addRemark("M12 is left out: hinit hands the command on to the agent")
		return nil
	}
	for name, samples := range took {
		for k, v := range samples {
			if name != trueName {
				b.figures.add("M12", name, hinitName, v-took[trueName][k])
			}
		}
	}
	return nil
}

// enterContainer moves this process into a container.
func enterContainer(pid int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns(2) refuses a process that shares its file system state with other threads.
		return err
	}
	var spaces [2]int
	kinds := [2]int{syscall.CLONE_NEWPID, syscall.CLONE_NEWNS}
	for k, name := range []string{"pid", "mnt"} { // Open both before the second setns call changes what /proc shows.
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		spaces[k] = fd
	}
	for k, fd := range spaces {
		if err := unix.Setns(fd, kinds[k]); err != nil {
			return err
		}
	}
	return nil
}

// agentImage creates the files of the agent's image in the container: a user, the agent and hinit.
func agentImage(o agentOrder) error {
	if err := replaceEtc(filepath.Join(o.Dir, "etc")); err != nil {
		return err
	}
	agent := filepath.Join(o.Dir, "opt/hermes/.venv/bin")
	local := filepath.Join(o.Dir, "local")
	if err := errors.Join(os.MkdirAll(agent, 0o755), os.MkdirAll(local, 0o755)); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(agent, shimUser), []byte("#!/bin/sh\nexit "+strconv.Itoa(passedToAgent)+"\n"), 0o755),
		copyFile(filepath.Join(local, "hinit"), o.Hinit),
		copyFile(filepath.Join(local, "hinit-tools"), o.Hinit+"-tools"),
		copyFile(filepath.Join(local, shimUser), o.Shim),
		unix.Mount(filepath.Join(o.Dir, "opt"), "/opt", "", unix.MS_BIND, ""),
		unix.Mount(local, "/usr/local/bin", "", unix.MS_BIND, ""),
	)
}

func timeAgent(o agentOrder) (map[string][]float64, error) {
	if err := errors.Join(enterContainer(o.PID), agentImage(o)); err != nil {
		return nil, err
	}
	const typed = "/usr/local/bin/" + shimUser
	took := map[string][]float64{}
	for range o.Rounds {
		for name, argv := range map[string][]string{
			trueName: {trueName}, gatewayStatus: {typed, "gateway", "status"}, gatewayStart: {typed, "gateway", "start"},
		} {
			d, err := timeCommands(o.Env, "/", [][]string{argv})
			var code exitError
			if errors.As(err, &code) && code.code == passedToAgent {
				return nil, nil //nolint:nilnil // the command passes everything on to the agent, so there is nothing to measure
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			took[name] = append(took[name], ms(d))
		}
	}
	return took, nil
}
