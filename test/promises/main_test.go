package promises_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

var (
	full      = flag.Bool("full", false, "try everything that the sheet says, which takes about a quarter of an hour")
	write     = flag.Bool("write", false, "write the figures into docs/reference/promises.md")
	seed      = flag.Uint64("seed", uint64(time.Now().UnixNano()), "what is random follows from it")
	dayEvents = flag.Int("events", 0, "how many events a day of 200 profiles has; 0 is 1000 of 40, and 100000 of 200 with -full")
	span      = flag.Duration("span", 0, "how long chaos reigns; 0 is 5s, and a minute with -full")
	leaseSpan = flag.Duration("lease", 100*time.Second, "how long each fleet of containers on one volume is disturbed, with -full")
)

// built holds the paths of the built binaries, and their directory.
var built struct{ root, shipped, faulty, agent string }

func TestMain(m *testing.M) {
	testproc.Main()
	if order := os.Getenv(stageVar); order != "" {
		os.Exit(stage(order))
	}
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(runRole(role))
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	testkit.IsolateProcess()
	testkit.LimitParallel(shortOrFull(6, 100))   // These tests mostly wait. In the full form, turns limits how many run.
	root, err := os.MkdirTemp("/var/tmp", "hp-") // Use a short path, because a socket path has at most 107 bytes.
	if err == nil {
		err = os.Chmod(root, 0o755)
	}
	if err == nil && !testing.Short() {
		err = build(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(root) // an error does not matter: only a temporary directory is left
	code := m.Run()
	if *full || *write {
		if err := sheet.show(*write && code == 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// build builds the static binaries, with and without fault injection.
func build(root string) error {
	built.root = root
	built.shipped, built.faulty, built.agent = filepath.Join(root, "hinit"), filepath.Join(root, "faulty", "hinit"), filepath.Join(root, "example-agent")
	return testkit.Build(root, "hinit", "faulty/hinit", "example-agent")
}

// poll repeats the condition until it holds, and returns its last error after the deadline.
func poll(deadline time.Duration, condition func() error) error {
	end := time.Now().Add(deadline)
	for {
		err := condition()
		if err == nil || errors.Is(err, errHopeless) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %w", deadline, err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// errHopeless marks an error that no further waiting can cure, so that poll returns at once.
var errHopeless = errors.New("the init has ended")

// within fails the test unless the condition holds before the deadline.
func within(t testing.TB, deadline time.Duration, condition func() error) {
	t.Helper()
	if err := poll(deadline, condition); err != nil {
		t.Fatal(err)
	}
}

// The full form has three kinds of tests. Tests that measure times run first, one after the other, and nothing else runs
// meanwhile. Then the tests that take many minutes start together. All other tests run beside them, a few at a time.

// parallelMeasurement calls t.Parallel for a test that measures times. In the full form, no other test runs
// beside it.
func parallelMeasurement(t *testing.T) {
	if !*full {
		t.Parallel()
	}
}

// parallelLong calls t.Parallel for a test that takes minutes in the full form. It needs no turn.
func parallelLong(t *testing.T) { t.Parallel() }

// parallelInTurn calls t.Parallel for an ordinary test. In the full form, the test takes a turn.
func parallelInTurn(t *testing.T) {
	t.Parallel()
	if *full {
		turns <- struct{}{}
		t.Cleanup(func() { <-turns })
	}
}

// turns limits, in the full form, how many tests run at a time beside the long ones.
var turns = make(chan struct{}, 4)

// shortOrFull returns short in the short form of the tests, and whole in the full form.
func shortOrFull(short, whole int) int {
	if *full {
		return whole
	}
	return short
}
