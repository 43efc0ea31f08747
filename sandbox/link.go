package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/internal/pause"
	"hinit/sandbox/archive"
	"hinit/sandbox/gate"
	"hinit/sandbox/mux"
)

// The ways to reach the helper in a container, see [Description.Exec].
const (
	ExecDirect   = "direct"   // commands run over a socket in a directory that the container shares with this machine
	ExecAttached = "attached" // commands run over one exec of the engine, which carries all commands of this process
)

// helperLink is a connection to the helper in a sandbox's container. reason says why the mode is not ExecDirect.
type helperLink struct {
	mode, reason string
	id           string // ID of the container.
	client       *mux.Client
}

// alive reports whether the link can still be used.
func (l *helperLink) alive() bool { return l != nil && l.client.Err() == nil }

func (l *helperLink) close() {
	if l != nil {
		l.client.Close()
	}
}

// helperAnswerTime is how long to wait for the helper's answer before asking the engine about the container.
const helperAnswerTime = 250 * time.Millisecond

// ensureLink returns a working link; each command calls it first. It keeps the current link if the
// helper answers. Otherwise it asks the engine for the state of the container, and connects to the
// container if it runs. A paused container is an error, and so is an adopted container that is not
// running. Any other container is started or recreated. If several callers need a new link, one
// makes it while the others wait.
func (s *Sandbox) ensureLink(ctx context.Context) (*helperLink, error) {
	l, err := s.currentLink()
	if err != nil {
		return nil, err
	}
	if err := s.checkAnswer(ctx, l); err != nil || l.alive() {
		return l, err
	}
	if !pause.Send(ctx, s.reconnectLock, struct{}{}) {
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.reconnectLock }()
	if l, err = s.currentLink(); err != nil || l.alive() {
		return l, err
	}
	if l, err = s.reconnect(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		l.close()
		return nil, ErrClosed
	}
	s.link = l
	return l, nil
}

func (s *Sandbox) currentLink() (*helperLink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	return s.link, nil
}

// checkAnswer waits for an answer of the helper. If none comes, it asks the engine about the container. It returns an error
// if the container is paused, or if the engine does not answer either.
func (s *Sandbox) checkAnswer(ctx context.Context, l *helperLink) error {
	if !l.alive() || l.client.AnswersWithin(helperAnswerTime) {
		return nil
	}
	switch now := s.manager.inspectState(ctx, l.id); {
	case now.State == Paused:
		return &StateError{now}
	// The engine may not answer because it waits for a container that it could not freeze.
	case now.State == "" && l.client.SinceLastFrame() > engineAnswerTimeout:
		return fmt.Errorf("cannot run a command in the container %s: the helper does not answer, and %w", shortID(l.id), ErrNoEngine)
	}
	return nil // The machine may only be busy. A running command notices a lost helper by itself.
}

// settleTimeout is how long the engine may need to notice that a container is ending. The helper's connection breaks earlier.
const settleTimeout = 10 * time.Second

// reconnect connects to the helper. If necessary, it first makes the container run. It tries again for some time, because the
// engine may still report a container as running that is just ending.
func (s *Sandbox) reconnect(ctx context.Context) (*helperLink, error) {
	limit := time.Now().Add(settleTimeout)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		l, err := s.reconnectOnce(ctx)
		if err == nil || !errors.Is(err, errContainerEnding) || time.Now().After(limit) {
			return l, err
		}
		if !pause.For(ctx, wait) {
			return nil, context.Cause(ctx)
		}
	}
}

// errContainerEnding means that the container is just ending, and that the caller should try again a moment later.
var errContainerEnding = errors.New("the container is just ending")

func (s *Sandbox) reconnectOnce(ctx context.Context) (*helperLink, error) {
	id, name := s.idAndName()
	// If the helper answers, the container runs, and the engine need not be asked.
	if l := s.manager.dialDirect(id, name, helperAnswerTime); l != nil {
		return l, nil
	}
	c, err := Container{State: Gone}, error(nil)
	if id != "" {
		if c, err = s.manager.engine.Inspect(ctx, id); errors.Is(err, ErrGone) {
			c, err = Container{ID: id, State: Gone}, nil
		}
	}
	if err == nil && c.State != Running && c.State != Paused && !s.adopted {
		if id != "" {
			s.manager.opts.warn(fmt.Sprintf("%s (%s): it is brought back", describeState(c), shortID(c.ID)))
		}
		if err = s.findOrMake(ctx); err == nil {
			c, err = s.manager.engine.Inspect(ctx, s.ID())
		}
	}
	if err != nil {
		return nil, err
	}
	if c.State == Paused || c.State != Running && s.adopted {
		return nil, &StateError{c}
	}
	return s.manager.connect(ctx, c)
}

// dialDirect connects to the helper's socket in a container's directory on the volume. It returns nil if the helper does not
// answer within limit. A process in the container can replace the socket's file by a link, so dialDirect follows no links and
// accepts only a socket.
func (m *Manager) dialDirect(id, name string, limit time.Duration) *helperLink {
	if name == "" || strings.Contains(name, "/") {
		return nil
	}
	fd, err := m.store.dir.ConnectSocket(filepath.Join(runDir, name, mux.Socket))
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), mux.Socket)
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(limit))
	c, err := mux.NewClient(conn, id)
	if err != nil {
		conn.Close()
		return nil
	}
	_ = conn.SetDeadline(time.Time{})
	return &helperLink{mode: ExecDirect, id: id, client: c}
}

// helloTimeout is how long the helper may take for the first message.
const helloTimeout = 2 * time.Second

// connect connects to the helper in a running container, and starts the helper if necessary. It prefers a direct connection.
func (m *Manager) connect(ctx context.Context, c Container) (*helperLink, error) {
	if m.helperError != nil {
		return nil, fmt.Errorf("cannot run commands in the container %s: %w", shortID(c.ID), m.helperError)
	}
	reason := "the helper is not mounted there: the container was made by something else, or the engine can't see this volume"
	own := c.Labels[LabelVolume] == m.store.id // In another volume's container, the socket is in a directory of that volume.
	if own && slices.ContainsFunc(c.Mounts, func(m Mount) bool { return m.Target == mux.ToolsDir }) {
		l, err := m.connectDirect(ctx, c)
		if err == nil || ctx.Err() != nil {
			return l, err
		}
		reason = err.Error()
	}
	if m.opts.AttachOnly {
		reason = ""
	}
	client, err := m.connectAttached(ctx, c)
	if err == nil {
		return &helperLink{mode: ExecAttached, reason: reason, id: c.ID, client: client}, nil
	}
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrNoEngine):
		return nil, err
	case errors.Is(err, errFrozen):
		if now := m.inspectState(ctx, c.ID); now.State == Paused {
			err = &StateError{now}
		}
		return nil, err
	case errors.Is(err, ErrGone):
		return nil, fmt.Errorf("%w: %w", errContainerEnding, err)
	}
	for range 10 { // A start of the helper fails while the container is ending, so try several times.
		if now := m.inspectState(ctx, c.ID); now.State != Running {
			return nil, fmt.Errorf("cannot use the container %s: %s: %w: %w", shortID(c.ID), describeState(now), errContainerEnding, ErrGone)
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
	return nil, fmt.Errorf("cannot run commands in the container %s, in which hinit-sandbox-helper can't be started: %w", shortID(c.ID), err)
}

// listenTimeout is how long a helper may take from its start until it listens.
const listenTimeout = 5 * time.Second

// connectDirect starts the helper from its mount and connects to its socket. The exec that starts the helper has no input, so
// it ends as soon as the helper listens.
func (m *Manager) connectDirect(ctx context.Context, c Container) (*helperLink, error) {
	if l := m.dialDirect(c.ID, c.Name, helloTimeout); l != nil {
		return l, nil
	}
	defer setTimeLimit(&ctx, listenTimeout)()
	relay, err := m.engine.Exec(ctx, c.ID, c.AttachSpec(mux.ToolsDir+"/"+helperName, false))
	if err != nil {
		return nil, err
	}
	reachCrashPoint("helper")
	defer context.AfterFunc(ctx, func() { _ = relay.Close() })()
	_, _ = io.Copy(io.Discard, relay)
	_ = relay.Close()
	if l := m.dialDirect(c.ID, c.Name, helloTimeout); l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("the socket that the container shares with this machine can't be reached %s", relay.ErrorText())
}

// connectAttached connects through an exec of the engine. If the container doesn't mount the helper, it copies the helper into
// the container first.
func (m *Manager) connectAttached(ctx context.Context, c Container) (client *mux.Client, err error) {
	err = errors.New("the helper is not mounted there")
	for _, mount := range c.Mounts {
		path := mount.Target + "/" + helperName
		if mount.Type == "volume" && strings.HasPrefix(mount.Target, gate.DirPrefix) {
			path = mount.Target + "/" + gate.ProgramName // The gate program is the same file as the helper.
		} else if mount.Target != mux.ToolsDir {
			continue
		}
		if client, err = m.attach(ctx, c, path); err == nil || ctx.Err() != nil || errors.Is(err, errFrozen) {
			return client, err
		}
	}
	if m.opts.AttachOnly { // Don't copy the helper: copying follows mounts by name, and the owner of a mount can redirect it.
		return nil, err
	}
	_, hash, err := m.readHelper()
	if err != nil {
		return nil, err
	}
	client, err = m.attach(ctx, c, "/"+copiedHelperPrefix+hash)
	if err == nil || !isHelperMissing(err) {
		return client, err
	}
	path, err := m.copyHelper(ctx, c.ID)
	if err != nil {
		return nil, fmt.Errorf("the helper can't be copied into the container: %w", err)
	}
	return m.attach(ctx, c, path)
}

// isHelperMissing reports whether the runtime's error says that the helper does not exist in the container. Only then may the
// helper be copied. After any other error the container may be ending. To copy, the engine would mount the container's mounts
// again, and the removal of the container would then delete the files in them.
func isHelperMissing(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "no such file") || strings.Contains(text, "not found")
}

// copiedHelperPrefix is the beginning of the file name of a helper that was copied to a container's root directory.
const copiedHelperPrefix = ".hinit-sandbox-"

// copyHelper copies the helper into a container, if possible before its first start. To copy, an engine mounts all of the
// container's mounts again. A running container would notice when they are unmounted.
func (m *Manager) copyHelper(ctx context.Context, id string) (path string, err error) {
	program, hash, err := m.readHelper()
	if err != nil {
		return "", err
	}
	file, err := archive.OneFile(copiedHelperPrefix+hash, 0o755, program)
	if err != nil {
		return "", err
	}
	return "/" + copiedHelperPrefix + hash, m.engine.CopyIn(ctx, id, "/", file)
}

// AttachSpec returns the command that starts the helper at path as a relay. It runs in the root directory, and the helper
// enters the container's directory by itself, see [LabelDir]. A container without that label may have an older helper, which
// can't. If that helper was not copied, the command runs in the container's directory.
func (c Container) AttachSpec(path string, stdin bool) ExecSpec {
	argv := []string{path, "attach", c.ID}
	if c.Labels[LabelDir] == "" && !strings.HasPrefix(path, "/"+copiedHelperPrefix) {
		return ExecSpec{Argv: argv, Stdin: stdin}
	}
	return ExecSpec{Argv: append(argv, c.Dir), Dir: "/", Stdin: stdin}
}

// attach starts the helper in the container as a relay for one connection, and checks that it answers for this container.
func (m *Manager) attach(ctx context.Context, to Container, path string) (*mux.Client, error) {
	id := to.ID
	conn, err := m.engine.Exec(ctx, id, to.AttachSpec(path, true))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listenTimeout+helloTimeout, errors.New("the helper does not answer"))
	defer cancel()
	inTime := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, err := mux.NewClient(conn, id)
	switch {
	case !inTime():
		return nil, context.Cause(ctx)
	case err == nil:
		return c, nil
	}
	_ = conn.Close()
	text := conn.ErrorText()
	// The engine believes that the container runs, but the runtime sees that it is frozen.
	if strings.Contains(text, "paused container") {
		return nil, fmt.Errorf("cannot run a command in the container %s: %w; start it again with: docker restart %[1]s", shortID(id), errFrozen)
	}
	if text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return nil, err
}

// tailBuffer keeps the last 2 KiB of the text that is written to it, for an error message.
type tailBuffer []byte

func (t *tailBuffer) Write(p []byte) (int, error) {
	const limit = 2 << 10
	*t = append(*t, p[max(0, len(p)-limit):]...)
	*t = (*t)[max(0, len(*t)-limit):]
	return len(p), nil
}

func (t *tailBuffer) String() string { return strings.TrimSpace(string(*t)) }
