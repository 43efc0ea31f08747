package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// shimUser is the agent's user in the namespace in which shims are measured.
const shimUser = "hermes"

// shellShim is the exec shim of a container without hinit: a script that calls s6-setuidgid.
const shellShim = `#!/bin/sh
case "${HERMES_DOCKER_EXEC_AS_ROOT:-}" in
1 | true | yes) exec /bin/true "$@" ;;
esac
if [ "$(id -u)" != 0 ]; then
	exec /bin/true "$@"
fi
HOME=/opt/data
export HOME
exec s6-setuidgid ` + shimUser + ` /bin/true "$@"
`

// candidate is a command that drops root and executes /bin/true.
type candidate struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
}

type shimOrder struct {
	Dir        string      `json:"dir"` // Directory for the contents of /etc.
	Rounds     int         `json:"rounds"`
	Candidates []candidate `json:"candidates"`
}

// measureShims measures M8: the time that an exec shim adds to /bin/true. It uses a mount namespace
// with its own /etc, which holds hinit-shim's configuration.
func (b *bench) measureShims() error {
	order := shimOrder{Dir: filepath.Join(b.work, "etc"), Rounds: 40 * b.runs}
	if b.quick {
		order.Rounds = 10
	}
	script := filepath.Join(b.work, "shim.sh")
	if err := os.WriteFile(script, []byte(shellShim), 0o755); err != nil {
		return err
	}
	id := strconv.Itoa(agentID)
	for _, c := range []candidate{
		{trueName, []string{trueName}},
		{emptyName, []string{b.empty}},
		{hinitName, []string{b.shim}},
		{"naive Go", []string{b.naive, id, trueName}},
		{"setpriv", []string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", trueName}},
		{"chpst", []string{"chpst", "-u", ":" + id + ":" + id, trueName}},
		{"s6-setuidgid", []string{"s6-setuidgid", shimUser, trueName}},
		{"sh script", []string{script}},
	} {
		if _, err := exec.LookPath(c.Argv[0]); err != nil || c.Name == "sh script" && missingProgram(s6{}) != "" {
			b.addRemark("%s is left out of M8: not all of its programs are here", c.Name)
			continue
		}
		order.Candidates = append(order.Candidates, c)
	}
	var took map[string][]float64
	if err := b.askRole(roleShims, order, &took); err != nil {
		return err
	}
	for name, samples := range took {
		for k, v := range samples {
			b.figures.add("M8", "whole", name, v)
			if name != trueName {
				b.figures.add("M8", "added", name, v-took[trueName][k])
			}
		}
	}
	return nil
}

// askRole runs a role in its own mount namespace. It passes question and reads answer as JSON.
func (b *bench) askRole(role string, question, answer any) error {
	text, err := json.Marshal(question)
	if err != nil {
		return err
	}
	cmd := exec.Command(b.self, role, string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", role, err)
	}
	return json.Unmarshal(out, answer)
}

// timeShims is a role: it measures the candidates in turns, and returns their times.
func timeShims(o shimOrder) (map[string][]float64, error) {
	if err := privateEtc(o.Dir); err != nil {
		return nil, err
	}
	took := map[string][]float64{}
	for range o.Rounds {
		for _, c := range shuffled(o.Candidates) {
			d, err := timeCommands(nil, "/", [][]string{c.Argv})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			took[c.Name] = append(took[c.Name], ms(d))
		}
	}
	return took, nil
}

// privateEtc mounts an /etc with the shim's configuration in this mount namespace.
func privateEtc(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "hinit"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "hinit", "shim"), []byte(trueName+"\n"+shimUser+"\n"), 0o644); err != nil {
		return err
	}
	return replaceEtc(dir)
}

// replaceEtc mounts a small /etc with the agent's user in this mount namespace.
func replaceEtc(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"ld.so.cache", "nsswitch.conf", "localtime"} {
		if err := copyFile(filepath.Join(dir, name), filepath.Join("/etc", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "passwd"),
			fmt.Appendf(nil, "root:x:0:0:root:/root:/bin/sh\n%[1]s:x:%[2]d:%[2]d:%[1]s:/opt/data:/bin/sh\n", shimUser, agentID), 0o644),
		os.WriteFile(filepath.Join(dir, "group"), fmt.Appendf(nil, "root:x:0:\n%s:x:%d:\n", shimUser, agentID), 0o644),
		unix.Mount(dir, "/etc", "", unix.MS_BIND, ""),
	)
}
