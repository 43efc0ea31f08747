package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/proc"
)

const (
	// liveEvery is how old the live view of the demo gets.
	liveEvery = 500 * time.Millisecond
	// liveLines is how many lines of the container's log it shows.
	liveLines = 8
	demoKeys  = "keys: c crash gateway-coder   s stop it   u start it   q quit"
)

// live shows what runs until the demo ends, and does what the keys say. It needs a terminal for both.
func (d *demoRun) live(ctx context.Context, quit func(), child *proc.Child) {
	restore, err := takeKeys(d.in)
	if err != nil {
		d.narrate(ctx)
		return
	}
	defer restore()
	keys := make(chan byte)
	go func() {
		var key [1]byte
		for {
			if n, err := d.in.Read(key[:]); n == 0 || err != nil {
				return
			}
			select {
			case keys <- key[0]:
			case <-ctx.Done():
				return
			}
		}
	}()
	said := make(chan string, 8)
	message := ""
	var cl *client.Client
	for ctx.Err() == nil {
		if cl == nil {
			cl, _ = client.Dial([]string{d.dir + "/control.sock"})
		}
		if cl != nil {
			if st, err := cl.Status(ctx); err == nil {
				d.draw(st, message)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(liveEvery):
		case message = <-said:
		case key := <-keys:
			if key == 'q' {
				quit()
				return
			}
			if cl != nil {
				go func() { said <- d.press(ctx, cl, child, key) }()
			}
		}
	}
}

// takeKeys makes a terminal give each key at once, without showing it. restore takes that back.
func takeKeys(tty *os.File) (restore func(), err error) {
	fd := int(tty.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	now := *old
	now.Lflag &^= unix.ICANON | unix.ECHO // ISIG stays: Ctrl-C ends the demo
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &now); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil // the terminal may be gone
}

// draw shows the status, the end of the container's log and the keys.
func (d *demoRun) draw(st client.Status, message string) {
	var w bytes.Buffer
	w.WriteString("\x1b[H\x1b[2J")
	w.Write(show.Status(st, show.Look{}))
	w.WriteString("\nthe container's log:\n")
	text, _ := os.ReadFile(d.console()) // without it there are no lines
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for _, line := range lines[max(0, len(lines)-liveLines):] {
		w.WriteString("  " + show.Line(line) + "\n")
	}
	fmt.Fprintf(&w, "\nin another terminal: HINIT_CONFIG=%s/hinit.yaml %s status\n%s\n%s\n", d.dir, selfName(), demoKeys, show.Line(message))
	_, _ = d.raw().Write(bytes.ReplaceAll(w.Bytes(), []byte("\n"), []byte("\r\n")))
}

// press does what a key says and returns what came of it.
func (d *demoRun) press(ctx context.Context, cl *client.Client, child *proc.Child, key byte) string {
	var err error
	switch key {
	case 'c':
		err = d.crash(ctx, cl, child)
	case 's':
		_, err = cl.Stop(ctx, "coder", client.Wait{})
	case 'u':
		_, err = cl.Start(ctx, "coder", client.Wait{})
	default:
		return ""
	}
	if err != nil {
		return err.Error()
	}
	return map[byte]string{'c': "kill -9 of gateway-coder", 's': "hinit stop coder", 'u': "hinit start coder"}[key]
}

// crash kills the gateway of coder from outside.
func (d *demoRun) crash(ctx context.Context, cl *client.Client, child *proc.Child) error {
	st, err := cl.Status(ctx, "coder")
	if err != nil {
		return err
	}
	if coder(st).PID == 0 {
		return fmt.Errorf("gateway-coder is not running")
	}
	pid := outside(child.PID(), coder(st).PID)
	if pid == 0 {
		return fmt.Errorf("cannot find process %d of the container", coder(st).PID)
	}
	return unix.Kill(pid, unix.SIGKILL)
}

// outside finds the number that a process has here, given the one that it has in the PID namespace of an init (proc_pid_status(5),
// NSpid). It returns 0 when there is no such process.
func outside(init, inner int) int {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init))
	if err != nil {
		return 0
	}
	files, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range files {
		dir := filepath.Dir(file)
		if name, err := os.Readlink(dir + "/ns/pid"); err != nil || name != namespace {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
				all := strings.Fields(numbers)
				if slices.Contains(all[len(all)-1:], strconv.Itoa(inner)) {
					pid, _ := strconv.Atoi(filepath.Base(dir))
					return pid
				}
			}
		}
	}
	return 0
}
