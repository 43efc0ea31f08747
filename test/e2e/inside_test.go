package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// inside returns the root directory of a running container, or nil if it is not accessible. Reading
// from it is much cheaper than docker exec.
func (c *container) inside() *os.Root {
	if os.Geteuid() != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pid := c.hostPID(ctx)
	if pid == 0 {
		return nil
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return nil
	}
	return root
}

func (c *container) read(file string) (string, error) {
	if root := c.inside(); root != nil {
		defer root.Close()
		text, err := root.ReadFile(file[1:])
		return string(text), err
	}
	r := c.exec("cat", file)
	if r.code != 0 {
		return "", errors.New(r.String())
	}
	return r.out, nil
}

// awaitFile waits until a file in the container has all the texts.
func (c *container) awaitFile(file string, texts ...string) {
	c.t.Helper()
	eventually(c.t, settle, func() error {
		text, err := c.read(file)
		return errors.Join(err, checkContains(text, texts...))
	})
}

// awaitBoots waits until the boot log has the lines of this number of boots, one for each profile,
// and returns the last boot's lines.
func (c *container) awaitBoots(boots, profiles int) (last string) {
	c.t.Helper()
	eventually(c.t, settle, func() error {
		text, err := c.read("/opt/data/logs/container-boot.log")
		lines := strings.SplitAfter(text, "\n")
		if n := len(lines) - 1; n != boots*profiles {
			return errors.Join(err, fmt.Errorf("the boot log has %d lines, want %d: %q", n, boots*profiles, text))
		}
		last = strings.Join(lines[(boots-1)*profiles:], "")
		return nil
	})
	return last
}

// names maps the IDs in the container's /etc/passwd or /etc/group to names.
type names map[uint32]string

func readNames(root *os.Root, file string) names {
	found := names{}
	text, _ := root.ReadFile(file) // A missing file contains no names.
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, ":"); len(f) > 2 {
			if id, err := strconv.ParseUint(f[2], 10, 32); err == nil {
				found[uint32(id)] = f[0]
			}
		}
	}
	return found
}

// ownedBy returns an error with the files in the directories that the user does not own.
func (c *container) ownedBy(user string, dirs ...string) error {
	root := c.inside()
	if root == nil {
		r := c.exec(slices.Concat([]string{"find"}, dirs, []string{"!", "-user", user})...)
		if r.code != 0 || r.out != "" {
			return fmt.Errorf("not %s's: %v", user, r)
		}
		return nil
	}
	defer root.Close()
	users := readNames(root, "etc/passwd")
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, fs.WalkDir(root.FS(), dir[1:], func(name string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			if uid := info.Sys().(*syscall.Stat_t).Uid; users[uid] != user && fmt.Sprint(uid) != user {
				return fmt.Errorf("/%s is uid %d's, not %s's", name, uid, user)
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// owners returns user, group and mode of each file, such as "hermes:hermes 600".
func (c *container) owners(paths ...string) map[string]string {
	c.t.Helper()
	found := map[string]string{}
	root := c.inside()
	if root == nil {
		for line := range strings.Lines(c.mustExec(append([]string{"stat", "-c", "%n %U:%G %a"}, paths...)...)) {
			name, owner, _ := strings.Cut(strings.TrimSpace(line), " ")
			found[name] = owner
		}
		return found
	}
	defer root.Close()
	users, groups := readNames(root, "etc/passwd"), readNames(root, "etc/group")
	for _, p := range paths {
		info, err := root.Lstat(p[1:])
		if err != nil {
			c.t.Fatal(err)
		}
		s := info.Sys().(*syscall.Stat_t)
		found[p] = fmt.Sprintf("%s:%s %o", users[s.Uid], groups[s.Gid], s.Mode&0o7777)
	}
	return found
}

// environ returns the environment of a process that runs as the agent's user.
func (c *container) environ(pid int) string {
	c.t.Helper()
	if root := c.inside(); root != nil {
		defer root.Close()
		var text []byte
		eventually(c.t, settle, func() (err error) { // A program that was just started shows no environment for a moment.
			if text, err = root.ReadFile(fmt.Sprintf("proc/%d/environ", pid)); err == nil && len(text) == 0 {
				err = errors.New("no environment")
			}
			return err
		})
		return "\n" + strings.ReplaceAll(string(text), "\x00", "\n")
	}
	r := c.execAs([]string{"-u", "hermes"}, "sh", "-c", fmt.Sprintf("tr '\\0' '\\n' </proc/%d/environ", pid))
	if r.code != 0 {
		c.t.Fatal(r)
	}
	return "\n" + r.out
}

// logs returns both streams of docker logs, from the engine's API if possible.
func (c *container) logs() (out, stderr string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := askEngine(ctx, "/containers/"+c.id+"/logs?stdout=1&stderr=1")
	if err == nil {
		defer r.Body.Close()
		if out, stderr, err = splitStreams(r.Body); err == nil && r.StatusCode == http.StatusOK {
			return out, stderr
		}
	}
	output := docker("logs", c.id)
	return output.out, output.err
}

// splitStreams separates the two output streams of a container without a terminal. Each piece has a header with
// its stream and length.
func splitStreams(from io.Reader) (out, stderr string, err error) {
	var texts [3]strings.Builder
	for {
		var head [8]byte
		if _, err := io.ReadFull(from, head[:]); errors.Is(err, io.EOF) {
			return texts[1].String(), texts[2].String(), nil
		} else if err != nil {
			return "", "", err
		}
		if head[0] > 2 || head[1]|head[2]|head[3] != 0 {
			return "", "", fmt.Errorf("no stream has the head %x", head)
		}
		if _, err := io.CopyN(&texts[head[0]], from, int64(binary.BigEndian.Uint32(head[4:]))); err != nil {
			return "", "", err
		}
	}
}

type process struct {
	pid, ppid int
	state     string
	args      string
}

// processes lists the processes of the container.
func (c *container) processes() []process {
	c.t.Helper()
	if root := c.inside(); root != nil {
		defer root.Close()
		return processesIn(root.FS())
	}
	var all []process
	for line := range strings.Lines(c.mustExec("ps", "-o", "pid,ppid,stat,args")) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] == "PID" || strings.HasPrefix(strings.Join(f[3:], " "), "ps -o") {
			continue
		}
		pid, _ := strconv.Atoi(f[0])
		ppid, _ := strconv.Atoi(f[1])
		all = append(all, process{pid, ppid, f[2], strings.Join(f[3:], " ")})
	}
	return all
}

// processesIn lists the processes in a container's /proc, except for those that end during the
// read.
func processesIn(root fs.FS) (all []process) {
	dirs, _ := fs.Glob(root, "proc/[1-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(path.Base(dir))
		stat, err2 := fs.ReadFile(root, dir+"/stat")
		args, err3 := fs.ReadFile(root, dir+"/cmdline")
		end := strings.LastIndex(string(stat), ") ") // The name of a process may contain brackets.
		if errors.Join(err, err2, err3) != nil || end < 0 {
			continue
		}
		head, f := string(stat[:end]), strings.Fields(string(stat[end+1:]))
		ppid, _ := strconv.Atoi(f[1])
		text := strings.TrimSpace(strings.ReplaceAll(string(args), "\x00", " "))
		// Zombies have no command line, and are skipped.
		if _, comm, _ := strings.Cut(head, "("); text == "" {
			text = "[" + comm + "]"
		}
		all = append(all, process{pid, ppid, f[0], text})
	}
	slices.SortFunc(all, func(a, b process) int { return a.pid - b.pid })
	return all
}

// matching returns the processes whose command line has a match.
func (c *container) matching(pattern string) []process {
	c.t.Helper()
	re := regexp.MustCompile(pattern)
	return slices.DeleteFunc(c.processes(), func(p process) bool { return !re.MatchString(p.args) })
}

// checkGone returns an error while a process exists, even as a zombie.
func (c *container) checkGone(pid int) error {
	if slices.ContainsFunc(c.processes(), func(p process) bool { return p.pid == pid }) {
		return fmt.Errorf("process %d is still there", pid)
	}
	return nil
}
