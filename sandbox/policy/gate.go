package policy

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/archive"
	"hinit/sandbox/gate"
)

// Gate manages the gate program of package gate on an engine. It puts the program on a volume that the containers mount, and
// remembers which containers have passed their gate. The gate program is the first program of each container that mounts
// directories of its owner. It waits until the guard has checked the mounts. All guards of an engine share one Gate.
type Gate struct {
	Program string // path of a statically linked hinit-sandbox-helper, which contains the gate program

	fillLock sync.Mutex // Serialises filling the volume.
	listLock sync.Mutex // Serialises lists of containers, see [Gate.listContainers].

	volume atomic.Pointer[string]   // Name of the volume; nil until the volume has the program.
	root   atomic.Pointer[RootMode] // Result of the last [Gate.DetermineRootMode].

	mu         sync.Mutex
	containers map[string]*gateRecord // Records by container ID; [Guarded.Create] also keeps one for each user.
}

// gateRecord is the Gate's state of one container. The record of a user has only the lock, which
// the guard holds while it counts the user's containers.
type gateRecord struct {
	lock      chan struct{} // Mutex with a cancellable wait: the channel holds an element while it is locked.
	userCount atomic.Int32  // Number of callers that hold the lock or wait for it; increased only under mu.
	// Start time of the container when it last passed its gate; zero: not known to this service; guarded by lock.
	passedStartTime time.Time
}

// recordOf returns the record of a container, and makes it if it is missing. It adds the parameter users to the users of the
// record. A record without users may be dropped later.
func (g *Gate) recordOf(id string, users int32) *gateRecord {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.containers) > 4096 { // Drop unused records; the service later asks the gates of these containers again.
		maps.DeleteFunc(g.containers, func(_ string, c *gateRecord) bool { return c.userCount.Load() == 0 })
	}
	if g.containers == nil {
		g.containers = map[string]*gateRecord{}
	}
	if g.containers[id] == nil {
		g.containers[id] = &gateRecord{lock: make(chan struct{}, 1)}
	}
	g.containers[id].userCount.Add(users)
	return g.containers[id]
}

// DetermineRootMode asks the engine how it maps root in containers to users of the machine. It returns the resulting RootMode,
// and stores it for [Gate.KnownRootMode].
func (g *Gate) DetermineRootMode(ctx context.Context, engine sandbox.Engine, p Policy) (RootMode, error) {
	info, err := engine.Info(ctx)
	if err != nil {
		return "", err
	}
	root := p.RootModeOf(info)
	g.root.Store(&root)
	return root, nil
}

// listContainers lists containers. Only one caller at a time can list, because an answer has all labels of each container and can
// take much memory.
func (g *Gate) listContainers(ctx context.Context, engine sandbox.Engine, labels map[string]string) ([]sandbox.Container, error) {
	g.listLock.Lock()
	defer g.listLock.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return engine.List(ctx, labels)
}

// KnownRootMode returns the last result of [Gate.DetermineRootMode], or "" before the first.
func (g *Gate) KnownRootMode() RootMode { return lo.FromPtr(g.root.Load()) }

// lockContainer locks a container. While a container passes its gate, the lock prevents that a command runs in it.
// lockContainer waits at most gateTimeout, so that a caller gets an error if the engine hangs.
func (g *Gate) lockContainer(ctx context.Context, id string) (release func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, gateTimeout, fmt.Errorf("%w about it in time", sandbox.ErrNoEngine))
	defer cancel()
	if release, err = g.lockKey(ctx, id); err != nil {
		err = fmt.Errorf("cannot use the container %.12s: %w", id, err)
	}
	return release, err
}

func (g *Gate) lockKey(ctx context.Context, key string) (release func(), err error) {
	c := g.recordOf(key, 1)
	if !pause.Send(ctx, c.lock, struct{}{}) {
		c.userCount.Add(-1)
		return nil, context.Cause(ctx)
	}
	return func() { <-c.lock; c.userCount.Add(-1) }, nil
}

// addGate mounts the volume with the gate program in a container, and makes the gate program the entry point. The gate
// program waits at its gate, and then enters the working directory, so that the engine enters only the root directory.
func (g *Gate) addGate(ctx context.Context, engine sandbox.FullEngine, spec *sandbox.Spec) error {
	volume, err := g.fillVolume(ctx, engine, spec.Image)
	if err != nil {
		return fmt.Errorf("cannot make a volume with the gate of sandboxes: %w", err)
	}
	dir := gate.DirPrefix + strings.ToLower(rand.Text())
	spec.Mounts = append(spec.Mounts, sandbox.Mount{Type: "volume", Source: volume, Target: dir, ReadOnly: true})
	image, err := engine.Image(ctx, spec.Image)
	if err != nil {
		return err
	}
	entry := spec.Entrypoint
	switch {
	case len(entry) == 0:
		entry = image.Entrypoint
		if len(spec.Cmd) == 0 {
			spec.Cmd = image.Cmd
		}
	case entry[0] == "": // Like in Docker, an empty first word means no entry point.
		entry = nil
	}
	verb := "gate"
	if spec.Init {
		// Don't let the engine's own init be the first process: a link in one mount could redirect another mount over the
		// path of that init.
		verb, spec.Init = "gate-init", false
	}
	workDir := cmp.Or(spec.Dir, image.Dir)
	// workDir is empty on a cluster, where only the nodes know the image's directory.
	if spec.Labels[sandbox.LabelDir] = workDir; workDir != "" {
		spec.Dir = "/"
	}
	spec.Entrypoint = append([]string{path.Join(dir, gate.ProgramName), verb, workDir}, entry...)
	// Without this, the engine runs the health check before the gate is open, and any process inside can fill the log.
	spec.Untrusted = true
	return nil
}

// gateProgram returns the path of the gate program at which the container waits at each start. It returns "" if the container
// does not wait. A container without [sandbox.LabelDir] is from an older version, and waits only if it has files of its
// owner.
func gateProgram(c sandbox.Container) string {
	at := slices.IndexFunc(c.Mounts, func(m sandbox.Mount) bool { return m.Type == "volume" && strings.HasPrefix(m.Target, gate.DirPrefix) })
	_, waits := c.Labels[sandbox.LabelDir]
	if at < 0 || !waits && c.Labels[labelCopies] == "" && !slices.ContainsFunc(c.Mounts, func(m sandbox.Mount) bool { return m.Type == "bind" }) {
		return ""
	}
	return path.Join(c.Mounts[at].Target, gate.ProgramName)
}

// GatePrefix is the prefix of the names of all volumes that hold a gate program.
const GatePrefix = "hinit-sandbox-gate-"

// Volume returns the name of the volume with the gate program, or "" while the volume has no program.
func (g *Gate) Volume() string { return lo.FromPtr(g.volume.Load()) }

// GateOwnerLabel is the value of [LabelOwner] on the container with which a service fills the volume of the gate program.
const GateOwnerLabel = "gate"

// fillVolume copies the gate program to a volume, once for each version of the program, and returns the volume's name. It
// copies through a container of the given image, which is never started.
func (g *Gate) fillVolume(ctx context.Context, engine sandbox.FullEngine, image string) (string, error) {
	if cluster, is := engine.(sandbox.Cluster); is {
		return cluster.GateVolume(), nil
	}
	g.fillLock.Lock()
	defer g.fillLock.Unlock()
	if name := g.Volume(); name != "" {
		if there, err := engine.Volumes(ctx, name, nil); err == nil && len(there) > 0 {
			return name, nil
		}
	}
	program, err := os.ReadFile(g.Program)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(program)
	volume := fmt.Sprintf("%s%x", GatePrefix, hash[:6])
	id, err := engine.Create(ctx, sandbox.Spec{
		Image: image, Cmd: []string{"none"}, Labels: map[string]string{LabelOwner: GateOwnerLabel}, Network: "none", Dir: "/",
		Mounts: []sandbox.Mount{{Type: "volume", Source: volume, Target: gate.DirPrefix + "fill"}},
	})
	if err != nil {
		return "", err
	}
	if !hasProgram(ctx, engine, id, program) {
		var file *bytes.Buffer
		if file, err = archive.OneFile(gate.ProgramName, 0o555, program); err == nil {
			err = engine.CopyIn(ctx, id, gate.DirPrefix+"fill", file)
		}
	}
	if err = errors.Join(err, engine.Remove(context.WithoutCancel(ctx), id)); err != nil {
		return "", err
	}
	g.volume.Store(&volume)
	debug.FreeOSMemory() // Free the memory of the copied program, which has several megabytes.
	return volume, nil
}

// hasProgram reports whether another service of the same engine has already copied the program to the volume. The program
// must then not be copied again. The engine would first remove the file, and a container that starts at that moment would not
// find it.
func hasProgram(ctx context.Context, engine sandbox.FullEngine, id string, program []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	r, err := engine.CopyOut(ctx, id, gate.DirPrefix+"fill/"+gate.ProgramName)
	if err != nil {
		return false
	}
	defer r.Close()
	archive := tar.NewReader(r)
	h, err := archive.Next()
	there, readErr := io.ReadAll(io.LimitReader(archive, int64(len(program))+1))
	return err == nil && readErr == nil && h.Mode&0o777 == 0o555 && bytes.Equal(there, program)
}

// gateTimeout limits how long a container may wait at its gate, not counting the time to copy files into it.
const gateTimeout = 20 * time.Second

// gateConn is a connection to the gate program in a container, see [gate.ServeCheck].
type gateConn struct {
	sandbox.Attachment
	lines *bufio.Reader
	close func()
}

// connectGate starts the gate program in a container as a user, with the arguments words, and connects to it. The connection is
// closed when the container ends or the time limit is over.
func (g *Guarded) connectGate(ctx context.Context, c sandbox.Container, user string, words ...string) (*gateConn, error) {
	limit := gateTimeout
	if c.Labels[labelCopies] != "" {
		limit += copyTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	exec, err := g.Engine.Exec(ctx, c.ID, sandbox.ExecSpec{Argv: append([]string{gateProgram(c)}, words...), User: user, Dir: "/", Stdin: true})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot ask the gate of container %.12s: %w", c.ID, err)
	}
	q := &gateConn{Attachment: exec, lines: bufio.NewReader(exec), close: cancel}
	context.AfterFunc(ctx, func() { _ = q.Close() }) // Closing ends the reads and writes in progress.
	guard.Go("watching a container at its gate", func() {
		// Check every second whether the container has ended, because an exec in a killed container may hang in the engine.
		for pause.For(ctx, time.Second) {
			if c, err := g.Engine.Inspect(ctx, c.ID); errors.Is(err, sandbox.ErrGone) || err == nil && c.State != sandbox.Running && c.State != sandbox.Paused {
				cancel()
			}
		}
	})
	return q, nil
}

// readLine reads one line from the gate program. It returns an error with the line if the line differs from want. If want is
// empty, it accepts any line.
func (q *gateConn) readLine(want string) (string, error) {
	text, err := q.lines.ReadSlice('\n') // ReadSlice fails if a line is longer than the buffer.
	line := string(text)
	if err == nil && want != "" && line != want {
		err = fmt.Errorf("it says %q", line)
	}
	if err != nil {
		err = fmt.Errorf("cannot open the gate of a sandbox: %w %s", err, q.ErrorText())
	}
	return line, err
}

// passGate lets a container pass its gate, and reports whether the container waited there. The gate program prints device and
// inode of each mount target. passGate compares them with the mount's source, without following links. If they differ, it
// compares access times, see [Guarded.compareAccessTimes]. Then it sends the files to copy and opens the gate. Any unexpected
// line is an error, because an engine may write its own messages to the same output. The caller holds the container's lock.
func (g *Guarded) passGate(ctx context.Context, c sandbox.Container) (waits bool, err error) {
	if gateProgram(c) == "" {
		g.gate.recordOf(c.ID, 0).passedStartTime = c.Started
		return false, nil
	}
	user, words, sources := "", []string{"check"}, []string(nil)
	if c.Labels[labelCopies] != "" {
		user = "0:0" // Only root can unpack the files.
	}
	for _, m := range c.Mounts {
		if m.Type == "bind" {
			words, sources = append(words, m.Target), append(sources, m.Source)
		}
	}
	q, err := g.connectGate(ctx, c, user, words...)
	if err != nil {
		return false, err
	}
	defer q.close()
	answer, err := q.readLine("")
	switch waits = answer == gate.StateWaiting; {
	case err != nil:
	case waits:
		err = g.checkMounts(ctx, c, q, words[1:], sources)
	case answer != gate.StateOpened:
		err = fmt.Errorf("cannot open the gate of a sandbox: the answer is %q", answer)
	}
	if err == nil {
		g.gate.recordOf(c.ID, 0).passedStartTime = c.Started
	}
	return waits, err
}

// checkMounts compares each mount target of a waiting container with its source. If all are equal, it copies the owner's
// files into the container and opens the gate. It is a part of [Guarded.passGate].
func (g *Guarded) checkMounts(ctx context.Context, c sandbox.Container, q *gateConn, targets, sources []string) error {
	var differ []int
	for i, outside := range sources {
		inside, ok := g.translator.FromEngine(outside)
		if sources[i] = inside; !ok {
			return fmt.Errorf("cannot look at the mount of %s: it is not on a volume of this container any more", outside)
		}
		_, info, err := g.resolveSource(sandbox.Mount{Source: inside})
		if err != nil {
			return err
		}
		line, err := q.readLine("")
		if err != nil {
			return err
		}
		got, st := strings.TrimSpace(line), fsutil.Stat(info)
		want := fmt.Sprint(st.Dev, " ", st.Ino)
		if _, is := g.Engine.(sandbox.Cluster); is { // The machines of a cluster have different device numbers, so ignore them.
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
		if err := g.compareAccessTimes(q, targets, sources, differ); err != nil {
			return err
		}
	}
	if err := g.copyIn(c, q); err != nil {
		return err
	}
	answer, err := q.sendGo()
	// Make the working directory as root, because the container's user may not.
	if dir := c.Labels[sandbox.LabelDir]; err == nil && answer != gate.VerdictGo {
		if root, failed := g.connectGate(ctx, c, "0:0", "mkdir", dir); failed == nil {
			_, _ = io.Copy(io.Discard, root)
			root.close()
		}
		if answer, err = q.sendGo(); err == nil && answer != gate.VerdictGo {
			err = &RefusedError{"the working directory " + dir + " (" + strings.TrimSpace(answer) + ")", "give one that the sandbox's user can enter"}
		}
	}
	return err
}

// sendGo tells the gate program to open the gate. It returns the program's answer, see [gate.ServeCheck].
func (q *gateConn) sendGo() (answer string, err error) {
	if _, err := io.WriteString(q, gate.VerdictGo); err != nil {
		return "", err
	}
	return q.readLine("")
}

// compareAccessTimes checks mount targets whose device or inode differs from their source's, because a container's kernel may
// have its own numbers (gVisor). It sets the access time of each source to a random time in the future, and expects the same
// time at the target. No read changes such a time, and only the owner of a file can set it.
func (g *Guarded) compareAccessTimes(q *gateConn, targets, sources []string, differ []int) error {
	want := map[int]int64{}
	for _, i := range differ {
		at := time.Now().AddDate(1, 0, 0).Add(mathrand.N(366 * 24 * time.Hour))
		want[i] = at.UnixNano()
		set := func(to time.Time) error { // Changing the time works only for files of the owner.
			return g.withSource(sources[i], func(root *fsutil.Dir, rel string) error { return root.SetAccessTime(rel, to) })
		}
		if err := set(at); err != nil {
			return &RefusedError{"a mount at " + targets[i] + " that shows another inode than its path (" + err.Error() + ")", "mount a file or directory of your own"}
		}
		defer func() { _ = set(time.Now()) }() // Ignore the error, because a wrong access time does no harm.
	}
	if _, err := io.WriteString(q, gate.CommandAccessTimes); err != nil {
		return err
	}
	for i, target := range targets {
		line, err := q.readLine("")
		if err != nil {
			return err
		}
		if at, compared := want[i]; compared && strings.TrimSpace(line) != strconv.FormatInt(at, 10) {
			return &RefusedError{"a mount at " + target + " that shows another file than its path (a process changes the path at this moment)", "try again"}
		}
	}
	_, err := q.readLine(gate.CommandAccessTimes)
	return err
}
