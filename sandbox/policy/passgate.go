package policy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/gate"
)

// gateTime limits how long a container may wait at its gate. The time to copy files into it is not included.
const gateTime = 20 * time.Second

// gateConn is a connection to the gate program in a container.
type gateConn struct {
	sandbox.Attachment
	lines *bufio.Reader
	close func()
}

// askGate connects to the gate program in a container. The parameter words holds the program's arguments. The connection is
// closed when the container ends or the time limit is over.
func (g *Guarded) askGate(ctx context.Context, c sandbox.Container, words ...string) (*gateConn, error) {
	limit, user := gateTime, ""
	if c.Labels[labelCopies] != "" {
		limit, user = limit+copyTime, "0:0" // the gate program unpacks the files as root
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	exec, err := g.Engine.Exec(ctx, c.ID, sandbox.ExecSpec{Argv: append([]string{gateProgram(c)}, words...), User: user, Stdin: true})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot ask the gate of container %.12s: %w", c.ID, err)
	}
	q := &gateConn{Attachment: exec, lines: bufio.NewReader(exec), close: cancel}
	context.AfterFunc(ctx, func() { _ = q.Close() }) // ends reads and writes
	guard.Go("watching a container at its gate", func() {
		for pause.For(ctx, time.Second) { // in a killed container, an exec may hang in the engine
			if c, err := g.Engine.Inspect(ctx, c.ID); errors.Is(err, sandbox.ErrGone) || err == nil && c.State != sandbox.Running && c.State != sandbox.Paused {
				cancel()
			}
		}
	})
	return q, nil
}

// readLine reads one line. If the line differs from the parameter want, the error contains the program's own text. An empty want
// accepts any line.
func (q *gateConn) readLine(want string) (string, error) {
	text, err := q.lines.ReadSlice('\n') // a line that is too long is an error
	line := string(text)
	if err == nil && want != "" && line != want {
		err = fmt.Errorf("it says %q", line)
	}
	if err != nil {
		err = fmt.Errorf("cannot open the gate of a sandbox: %w %s", err, q.Said())
	}
	return line, err
}

// passGate lets a container pass its gate, and reports whether the container waited there. The gate program reports the
// device and inode at each mount target. This process compares them with the mount's source, without following links, and if they
// differ, compares access times (see compareTimes). Then passGate sends the files to copy and opens the gate. Any unexpected answer is an error, because an engine may write its
// own messages to the same output.
func (g *Guarded) passGate(ctx context.Context, c sandbox.Container) (waits bool, err error) {
	if gateProgram(c) == "" {
		g.gate.recordPassed(c.ID, c.Started)
		return false, nil
	}
	words, sources := []string{"check"}, []string(nil)
	for _, m := range c.Mounts {
		if m.Type == "bind" {
			words, sources = append(words, m.Target), append(sources, m.Source)
		}
	}
	q, err := g.askGate(ctx, c, words...)
	if err != nil {
		return false, err
	}
	defer q.close()
	said, err := q.readLine("")
	switch waits = said == gate.Waiting; {
	case err != nil:
	case waits:
		err = g.checkMounts(c, q, words[1:], sources)
	case said != gate.Opened:
		err = fmt.Errorf("cannot open the gate of a sandbox: the answer is %q", said)
	}
	if err == nil {
		g.gate.recordPassed(c.ID, c.Started)
	}
	return waits, err
}

// checkMounts compares each mount target of a container that waits at its gate with its source. If all are equal, it copies the
// owner's files into the container and opens the gate.
func (g *Guarded) checkMounts(c sandbox.Container, q *gateConn, targets, sources []string) error {
	var differ []int
	for i, source := range sources {
		want, err := g.fileIdentity(source)
		if err != nil {
			return err
		}
		line, err := q.readLine("")
		if err != nil {
			return err
		}
		got := strings.TrimSpace(line)
		if _, is := g.Engine.(sandbox.Cluster); is { // device numbers differ between machines
			got, want = got[strings.LastIndexByte(got, ' ')+1:], want[strings.LastIndexByte(want, ' ')+1:]
		}
		if got != want {
			differ = append(differ, i)
		}
	}
	if _, err := q.readLine("\n"); err != nil {
		return err
	}
	if len(differ) > 0 {
		if err := g.compareTimes(q, targets, sources, differ); err != nil {
			return err
		}
	}
	if err := g.copyIn(c, q); err != nil {
		return err
	}
	if _, err := io.WriteString(q, gate.Go); err != nil {
		return err
	}
	_, err := q.readLine(gate.Go)
	return err
}

// compareTimes compares the mount targets whose numbers differ from their source's once more. The kernel of a container can have
// numbers of its own, as gVisor's has. So compareTimes sets the access time of each source to a random time in the future, which no
// read changes, and expects to find it at the target. Only the owner of a file can set that time.
func (g *Guarded) compareTimes(q *gateConn, targets, sources []string, differ []int) error {
	want := map[int]int64{}
	for _, i := range differ {
		at := time.Now().AddDate(1, 0, 0).Add(rand.N(366 * 24 * time.Hour))
		want[i] = at.UnixNano()
		if err := g.setAccessTime(sources[i], at); err != nil {
			return &RefusedError{"what is mounted at " + targets[i] + ": it has another number than its path (" + err.Error() + ")", "mount what belongs to you"}
		}
		defer func() { _ = g.setAccessTime(sources[i], time.Now()) }() // a wrong access time harms nothing
	}
	if _, err := io.WriteString(q, gate.Times); err != nil {
		return err
	}
	for i, target := range targets {
		line, err := q.readLine("")
		if err != nil {
			return err
		}
		if at, compared := want[i]; compared && strings.TrimSpace(line) != strconv.FormatInt(at, 10) {
			return &RefusedError{"what is mounted at " + target + ": it is not what the path leads to (somebody changes it at this moment)", "try again"}
		}
	}
	_, err := q.readLine(gate.Times)
	return err
}
