package tools

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
)

// hangingTerminal returns a terminal whose hinit accepts connections and never answers.
func hangingTerminal(t *testing.T) *cli.Terminal {
	t.Helper()
	dir, err := os.MkdirTemp("", "h") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", dir+"/control.sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return &cli.Terminal{In: os.Stdin, Out: &strings.Builder{}, Err: &strings.Builder{}, Env: func(name string) (string, bool) {
		value := map[string]string{"HINIT_RUNTIME_DIR": dir, "HINIT_CONFIG": dir + "/none.yaml"}[name]
		return value, value != ""
	}}
}

// Commands must say plainly that hinit does not answer, and exit with the code for "unreachable". The error must not be
// "context deadline exceeded", with the code for a failure.
func TestAHangingHinitWasADeadlineExceeded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	var all sync.WaitGroup
	for _, words := range []string{"explain default", "healthcheck", "signal default HUP", "checks", "notify k"} {
		term := hangingTerminal(t)
		all.Go(func() { // few subtests run at the same time, so use goroutines
			code, output := term.Run(strings.Fields(words), allVerbs()), fmt.Sprint(term.Err)
			if code != cmdline.ExitUnreachable || !strings.Contains(output, "hinit does not answer on") || strings.Contains(output, "deadline") {
				t.Errorf("%s: exit code %d: %s", words, code, output)
			}
		})
	}
	all.Wait()
}

// A bundle about a hinit that doesn't answer must contain all parts that need no hinit.
func TestTheBundleOfAHangingHinitHasTheKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	term, file := hangingTerminal(t), filepath.Join(t.TempDir(), "b.tar.gz")
	if code := term.Run([]string{"bundle", "-o", file}, allVerbs()); code != cmdline.ExitDone {
		t.Fatalf("exit code %d: %s", code, term.Err)
	}
	files := unpackBundle(t, file)
	if !strings.Contains(files["kernel.txt"], "/proc/version") || !strings.Contains(files["status.txt"], "did not wait longer") {
		t.Errorf("kernel %.40q, status %q", files["kernel.txt"], files["status.txt"])
	}
}
