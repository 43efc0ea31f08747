package mux

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testPeer is the other side of a client. The test reads and writes its frames.
type testPeer struct {
	t *testing.T
	c net.Conn
	r *Reader
	w *Writer
}

// socketPair returns the two ends of a connection whose buffers hold a small write.
func socketPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err = net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

func connect(t *testing.T) (*Client, *testPeer) {
	t.Helper()
	near, far := socketPair(t)
	p := &testPeer{t, far, NewReader(far), NewWriter(far)}
	greeted := make(chan struct{})
	go func() {
		defer close(greeted)
		if f, err := p.r.Next(); err != nil || f.Kind != KindHello {
			t.Error(f, err)
		}
		_ = p.w.WriteJSON(KindHello, 0, Hello{Version: Version, ID: "x"})
	}()
	c, err := NewClient(near, "x")
	if err != nil {
		t.Fatal(err)
	}
	<-greeted
	t.Cleanup(func() { c.Close(); far.Close() })
	return c, p
}

// openChannel opens a channel of the client, and reads the request at the peer.
func openChannel(t *testing.T, c *Client, p *testPeer) *Channel {
	t.Helper()
	got := make(chan Frame)
	go func() { f, _ := p.r.Next(); got <- f }()
	s, err := c.Open(Open{Op: OpRun, Argv: []string{"x"}})
	if f := <-got; err != nil || f.Kind != KindOpen || f.Channel != s.id {
		t.Fatal(f, err)
	}
	return s
}

func TestCommand(t *testing.T) {
	c, p := connect(t)
	s := openChannel(t, c, p)
	go func() {
		_ = p.w.Write(KindBegun, s.id, EncodeNumber(7))
		_ = p.w.Write(KindOutput, s.id, []byte("out"))
		_ = p.w.Write(KindErrors, s.id, []byte("err"))
		_ = p.w.WriteJSON(KindEnd, s.id, End{Code: 3, Text: strings.Repeat("x", 3*MaxData/2)})
	}()
	var out, errs bytes.Buffer
	_, _ = io.Copy(&out, s.Output)
	_, _ = io.Copy(&errs, s.Errors)
	<-s.Done()
	if end, err := s.End(); err != nil || end.Code != 3 || len(end.Text) != 3*MaxData/2 || out.String() != "out" || errs.String() != "err" || s.PID() != 7 {
		t.Errorf("%d %v %q %q", end.Code, err, out.String(), errs.String())
	}
}

// TestSlowReaderHoldsUpItselfOnly checks that an unread channel does not delay other channels.
func TestSlowReaderHoldsUpItselfOnly(t *testing.T) {
	c, p := connect(t)
	slow, quick := openChannel(t, c, p), openChannel(t, c, p)
	for range StreamWindow / MaxData {
		if err := p.w.Write(KindOutput, slow.id, make([]byte, MaxData)); err != nil {
			t.Fatal(err)
		}
	}
	_ = p.w.Write(KindOutput, quick.id, []byte("x"))
	_ = p.w.WriteJSON(KindEnd, quick.id, End{})
	<-quick.Done()
	room := make(chan int)
	go func() {
		for got := 1; ; got++ {
			f, err := p.r.Next()
			if err != nil {
				return
			}
			if f.Kind != KindConfirm || f.Channel != slow.id || !bytes.Equal(f.Data, []byte{byte(KindOutput)}) {
				continue
			}
			if got == maxUnconfirmed {
				room <- got
			}
		}
	}()
	go func() { _, _ = io.Copy(io.Discard, slow.Output) }()
	<-room // After the reader has taken a frame, another one fits.
	_ = p.w.WriteJSON(KindEnd, slow.id, End{})
	<-slow.Done()
}

// TestPeerThatBreaksTheProtocol checks that an invalid frame ends the connection with an error.
func TestPeerThatBreaksTheProtocol(t *testing.T) {
	for name, send := range map[string]func(w *Writer, s *Channel){
		"more than the window": func(w *Writer, s *Channel) {
			for range StreamWindow/MaxData + 1 {
				_ = w.Write(KindOutput, s.id, make([]byte, MaxData))
			}
		},
		"a channel that isn't open": func(w *Writer, s *Channel) { _ = w.Write(KindOutput, s.id+9, nil) },
		"begins twice": func(w *Writer, s *Channel) {
			_ = w.Write(KindBegun, s.id, EncodeNumber(1))
			_ = w.Write(KindBegun, s.id, EncodeNumber(1))
		},
		"room beyond the window": func(w *Writer, s *Channel) { _ = w.Write(KindConfirm, s.id, []byte{byte(KindInput)}) },
		"room for what isn't":    func(w *Writer, s *Channel) { _ = w.Write(KindConfirm, s.id, []byte{byte(KindOutput)}) },
		"room of no stream":      func(w *Writer, s *Channel) { _ = w.Write(KindConfirm, s.id, []byte{byte(KindEnd)}) },
		"room of two streams":    func(w *Writer, s *Channel) { _ = w.Write(KindConfirm, s.id, []byte{byte(KindInput), 1}) },
		"an input":               func(w *Writer, s *Channel) { _ = w.Write(KindInput, s.id, nil) },
		"a ping":                 func(w *Writer, _ *Channel) { _ = w.Write(KindPing, 0, nil) },
		"a client's frame":       func(w *Writer, s *Channel) { _ = w.WriteJSON(KindOpen, s.id, Open{}) },
		"an end that is no JSON": func(w *Writer, s *Channel) { _ = w.Write(KindEnd, s.id, []byte("{")) },
		"a number that is none":  func(w *Writer, s *Channel) { _ = w.Write(KindBegun, s.id, []byte{1}) },
		"an end that is too long": func(w *Writer, _ *Channel) {
			_, _ = w.w.Write([]byte{byte(KindEnd), 0, 0, 0, 1, 0, maxEndBytes >> 16, 0, 1})
			_ = w.w.Flush()
		},
		"a frame without a kind": func(w *Writer, s *Channel) { _, _ = w.w.Write(make([]byte, headerSize)); _ = w.w.Flush() },
		"a frame without end": func(w *Writer, s *Channel) {
			_, _ = w.w.Write([]byte{byte(KindOutput), 0, 0, 0, 1, 255, 255, 255, 255})
			_ = w.w.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, p := connect(t)
			s := openChannel(t, c, p)
			go send(p.w, s)
			<-c.done
			if !errors.Is(c.Err(), ErrProtocol) {
				t.Error(c.Err())
			}
			<-s.Done()
			if _, err := s.End(); !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
			if _, err := c.Open(Open{}); err == nil {
				t.Error(err)
			}
		})
	}
}

func TestConnectionEnds(t *testing.T) {
	c, p := connect(t)
	s := openChannel(t, c, p)
	waiting := make(chan int)
	go func() {
		n := 0
		for {
			if _, err := s.Input.Write(make([]byte, MaxData)); err != nil {
				break
			}
			n++
		}
		waiting <- n
	}()
	p.c.Close()
	<-s.Done()
	if _, err := s.End(); err == nil {
		t.Error("the end is known")
	}
	<-waiting
}

// TestFrameIsWholeOrNotThere checks that a request whose transmission fails halfway is not
// executed.
func TestFrameIsWholeOrNotThere(t *testing.T) {
	var b bytes.Buffer
	if err := NewWriter(&b).WriteJSON(KindOpen, 1, Open{Op: OpRun, Argv: []string{"rm", "-r", "x"}}); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	for cut := range whole {
		r := NewReader(bytes.NewReader(whole[:cut]))
		if f, err := r.Next(); err == nil {
			t.Fatalf("%d of %d bytes are a frame: %+v", cut, len(whole), f)
		}
	}
}

func TestManyChannels(t *testing.T) {
	c, p := connect(t)
	go func() {
		for {
			f, err := p.r.Next()
			if err != nil {
				return
			}
			if f.Kind == KindOpen {
				id := f.Channel
				go func() {
					_ = p.w.Write(KindOutput, id, EncodeNumber(id))
					_ = p.w.WriteJSON(KindEnd, id, End{})
				}()
			}
		}
	}()
	var all sync.WaitGroup
	for range 500 {
		all.Go(func() {
			s, err := c.Open(Open{Op: OpRun})
			if err != nil {
				t.Error(err)
				return
			}
			var out bytes.Buffer
			_, _ = io.Copy(&out, s.Output)
			if n, err := ParseNumber(out.Bytes()); err != nil || n != s.id {
				t.Errorf("channel %d got %q", s.id, out.Bytes())
			}
		})
	}
	all.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.channels) != 0 {
		t.Errorf("%d channels are left", len(c.channels))
	}
}

func TestOtherVersions(t *testing.T) {
	near, far := socketPair(t)
	defer near.Close()
	defer far.Close()
	_ = NewWriter(far).WriteJSON(KindHello, 0, Hello{Version: 99})
	if _, err := NewClient(near, ""); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Error(err)
	}
	if _, err := Accept(far, ""); err != nil {
		t.Error(err)
	}
	_ = NewWriter(near).WriteJSON(KindHello, 0, Hello{Version: 99})
	if _, err := Accept(far, ""); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Error(err)
	}
}

func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	w := NewWriter(&b)
	_ = w.Write(KindOutput, 1, []byte("x"))
	_ = w.WriteJSON(KindEnd, 1, End{Code: 1})
	_ = w.WriteJSON(KindOpen, 2, Open{Op: OpRun})
	f.Add(b.Bytes())
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		var again bytes.Buffer
		w := NewWriter(&again)
		read := 0
		for {
			frame, err := r.Next()
			if err != nil {
				break
			}
			if len(frame.Data) > maxSize(frame.Kind) {
				t.Fatal("a frame is too long")
			}
			read += headerSize + len(frame.Data)
			if err := w.Write(frame.Kind, frame.Channel, frame.Data); err != nil {
				t.Fatal(err)
			}
			_, _ = ParseNumber(frame.Data)
		}
		if !bytes.Equal(again.Bytes(), data[:read]) {
			t.Fatal("what was read is not what was written")
		}
	})
}

// FuzzClient checks that arbitrary bytes from the helper neither crash the client nor exceed its
// memory limit.
func FuzzClient(f *testing.F) {
	f.Add([]byte{byte(KindOutput), 0, 0, 0, 1, 0, 0, 0, 1, 'x', byte(KindEnd), 0, 0, 0, 1, 0, 0, 0, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Client{conn: newConn(discardConn{}, KindEnd), done: make(chan struct{}), pong: make(chan struct{})}
		c.reader = NewReader(bytes.NewReader(data))
		s, err := c.Open(Open{Op: OpRun})
		if err != nil {
			t.Fatal(err)
		}
		c.fail(c.readFrames(c.handleFrame))
		<-s.Done()
		if n, _ := io.Copy(io.Discard, io.MultiReader(s.Output, s.Errors)); n > 2*StreamWindow {
			t.Fatal("it holds too much")
		}
	})
}

type discardConn struct{}

func (discardConn) Read([]byte) (int, error)    { return 0, io.EOF }
func (discardConn) Write(p []byte) (int, error) { return len(p), nil }
func (discardConn) Close() error                { return nil }

// TestScript checks the script around a command in a real shell (contract, 19.9).
func TestScript(t *testing.T) {
	for _, shell := range []string{"bash", "sh"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Log("no", shell)
			continue
		}
		dir := t.TempDir()
		spaced := dir + "/-a b"
		run := func(c Script) (string, int) {
			cmd := exec.Command(path)
			cmd.Args, cmd.Dir, cmd.Env = c.Argv(shell), dir, []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
			for name, value := range c.Environ() {
				cmd.Env = append(cmd.Env, name+"="+value)
			}
			out, _ := cmd.CombinedOutput()
			return strings.TrimSpace(string(out)), cmd.ProcessState.ExitCode()
		}
		check := func(what, want string, code int, c Script) {
			t.Helper()
			if out, got := run(c); !strings.HasSuffix(out, want) || got != code {
				t.Errorf("%s, %s: %q and %d, want %q and %d", shell, what, out, got, want, code)
			}
		}
		check("quotes", `it's "x" $HOME`, 0, Script{Command: `echo 'it'\''s "x" $HOME'`})
		check("exit code", "", 3, Script{Command: "exit 3"})
		check("status of the last", "x", 1, Script{Command: "echo x; false"})
		check("no such directory", "", 126, Script{Command: "echo ran", Dir: "/no/such"})
		check("tilde", dir, 0, Script{Command: "pwd -P", Dir: "~"})
		check("make a directory", "", 0, Script{Command: "mkdir -- '-a b'", Dir: "~"})
		check("spaces and a hyphen", spaced, 0, Script{Command: "pwd -P", Dir: "~/-a b"})
		check("a relative one with a hyphen", spaced, 0, Script{Command: "pwd -P", Dir: "-a b"})
		check("own variables", "a 'b\" $c", 0, Script{Command: `echo "$V"`, Env: map[string]string{"V": "a 'b\" $c"}})
		state := Script{StateDir: dir, ExportsPath: dir + "/" + ExportsFile, FinalDirPath: dir + "/" + CwdFile, Dir: dir}
		state.Command = `export KEEP="two
lines 'x'"; LOSE=1; cd -- '-a b'`
		check("leaves a state", "", 0, state)
		state.Command, state.Dir = `echo "$KEEP-$LOSE"`, ""
		check("finds it", "two\nlines 'x'-", 0, state)
		check("own variables win over it", "mine", 0, Script{StateDir: dir, Command: `echo "$KEEP"`, Env: map[string]string{"KEEP": "mine"}})
		check("the marker of nobody is in the output", "x", 0, Script{Command: "echo x", StateDir: dir})
	}
}

func TestWriterStaysBroken(t *testing.T) {
	w := NewWriter(&limitedWriter{n: 20})
	if err := w.Write(KindOutput, 1, make([]byte, 100)); err == nil {
		t.Fatal("no error")
	}
	if err := w.Write(KindPing, 0, nil); err == nil {
		t.Error("half a frame is followed by another")
	}
}

type limitedWriter struct{ n int }

func (l *limitedWriter) Write(p []byte) (int, error) {
	n := min(l.n, len(p))
	if l.n -= n; n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// TestAnEndBesideTheCloseOfAConnectionEndsNoService checks that the end of a command while its
// connection closes does not cause a panic.
func TestAnEndBesideTheCloseOfAConnectionEndsNoService(t *testing.T) {
	c, p := connect(t)
	s := openChannel(t, c, p)
	c.Close()
	if err := c.handleFrame(Frame{Kind: KindEnd, Channel: s.id, Data: []byte("{}")}, s); err != nil {
		t.Error(err)
	}
	if _, err := s.End(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the channel has ended with %v", err)
	}
}
