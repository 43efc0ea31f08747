package control

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

func serveFIFO(t *testing.T, carryOut func(order string) string) (write func(text string), messages chan string) {
	t.Helper()
	dir := t.TempDir()
	f, err := openOrderFIFO(dir)
	if err != nil {
		t.Fatal(err)
	}
	messages = make(chan string, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serveOrderFIFO(f, carryOut, func(format string, args ...any) {
			messages <- fmt.Sprintf(format, args...)
		})
	}()
	t.Cleanup(func() { f.Close(); <-ended })
	return func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, orderFIFOName), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}, messages
}

func nextLine(t *testing.T, messages chan string) string {
	t.Helper()
	select {
	case line := <-messages:
		return line
	case <-time.After(testkit.Patience):
		t.Fatal("nothing was said")
		return ""
	}
}

func TestALineIsAnOrder(t *testing.T) {
	write, messages := serveFIFO(t, func(order string) string { return "first of " + order + "\nsecond\n" })
	write("\n  stop coder \n")
	for _, want := range []string{"orders: stop coder: first of stop coder", "orders: stop coder: second"} {
		if got := nextLine(t, messages); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	write(strings.Repeat("x", 2000) + "\nstatus\n")
	if got := nextLine(t, messages); got != "orders: a line is longer than 512 bytes, so it is left out" {
		t.Errorf("got %q", got)
	}
	if got := nextLine(t, messages); got != "orders: status: first of status" {
		t.Errorf("after a long line: %q", got)
	}
}

// While 16 orders through the FIFO hang, further orders must be refused. Without a limit, the number of goroutines would grow
// as long as the volume hangs.
func TestOrdersThatHangAreBounded(t *testing.T) {
	free, begun := make(chan struct{}), make(chan string, 100)
	write, messages := serveFIFO(t, func(order string) string { begun <- order; <-free; return "done" })
	for i := range 16 {
		write(fmt.Sprintf("stop %d\n", i))
	}
	for range 16 {
		<-begun
	}
	write("stop one-more\n")
	if got := nextLine(t, messages); got != `orders: "stop one-more" is not carried out: 16 others are not done yet` {
		t.Errorf("got %q", got)
	}
	close(free)
	var done []string
	for range 16 {
		done = append(done, nextLine(t, messages))
	}
	if !slices.Contains(done, "orders: stop 7: done") {
		t.Errorf("got %q", done)
	}
}

// hinit must replace another user's file in place of the FIFO, and keep a FIFO of root.
func TestTheFIFOIsRootsAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, orderFIFOName)
	if err := os.WriteFile(path, []byte("a file"), 0o666); err != nil {
		t.Fatal(err)
	}
	open := func() os.FileInfo {
		t.Helper()
		f, err := openOrderFIFO(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != os.ModeNamedPipe|0o600 {
			t.Fatalf("it is %v, %v", info.Mode(), err)
		}
		return info
	}
	if first := open(); !os.SameFile(first, open()) {
		t.Error("it was made anew")
	}
}
