package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/reexec"
)

var reexecVerb = cli.Verb{
	Name: "reexec", Doing: "re-execute hinit", Args: "[--binary FILE] [--json]",
	Summary: "replace the running hinit by the binary in its place; everything goes on",
	Run:     reexecute,
}

// reexecReport is the result of hinit reexec, for --json.
type reexecReport struct {
	Version string `json:"version"` // version of the hinit that runs now
	Image   int    `json:"image"`   // 1 for the program that the container was started with, one more after each re-execution
	Before  string `json:"before"`  // version that ran before
	Binary  string `json:"binary"`  // path of the program that runs now
	Same    bool   `json:"same"`    // the same file ran before, so nothing has changed
}

func reexecute(t *cli.Terminal, c *cli.Call) int {
	file := c.Flags.String("binary", "", "become this `FILE` (default: the one the running hinit was started from)")
	if _, code, ok := c.Parse(t, 0, 0); !ok {
		return code
	}
	cl, err := t.Dial()
	if err != nil {
		return t.Failed("re-execute hinit", err)
	}
	ctx, cancel := cmdline.Interruptible()
	defer cancel()
	before, err := cl.Status(ctx)
	if err != nil {
		return t.Failed("re-execute hinit", err)
	}
	path := cmp.Or(*file, before.Init.Binary)
	if err := checkBinary(path); err != nil {
		return t.Failed("re-execute hinit", err)
	}
	same := runsFile(before.Init, path) // compare before the re-execution, because hinit runs this file after every re-execution
	after, err := cl.Reexec(ctx, *file)
	report := reexecReport{Version: after.Version, Image: after.Image, Before: before.Init.Version, Binary: path, Same: same}
	return t.Show(c, report, err, func() {
		what := fmt.Sprintf(" (it was %s)", report.Before)
		if same {
			what = fmt.Sprintf(": same binary as before, %s; nothing changed", path)
		}
		fmt.Fprintf(t.Out, "hinit %s is image %d now%s\n", report.Version, report.Image, what)
	})
}

// runsFile reports whether the init runs the file at path as its program. It returns false if that is unknown, because outside of
// the container inode numbers have another meaning.
func runsFile(in client.Init, path string) bool {
	return in.BinaryID != "" && in.BinaryID == reexec.FileID(path) && inThisNamespace(in)
}

// inThisNamespace reports whether this command and the init see the same PID namespace, so that the init's pid means the same
// process here. It compares the age of that process with the age of the init. A difference of a few seconds is normal: on a busy
// machine, the container engine needs that time between starting the process and executing hinit.
func inThisNamespace(in client.Init) bool {
	st, err := procstat.Read(in.PID)
	return err == nil && agesMatch(time.Since(procstat.StartedAt(st.Start)), time.Since(in.StartedAt))
}

// agesMatch reports whether a process of the given age can be the init. The argument since is the time since the init's start.
func agesMatch(age, since time.Duration) bool {
	return age-since > -2*time.Second && age-since < 30*time.Second
}

// tryTimeout limits how long a binary may take to report that it can take over.
const tryTimeout = 10 * time.Second

// checkBinary checks that a binary can take over from the running hinit. It runs the binary only to make it print the state
// format that it accepts at a handover. A binary that does not support handovers would start as if the container had just
// started.
func checkBinary(path string) error {
	if path == "" {
		return errors.New("hinit does not know which file it was started from; give one with --binary")
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	defer cancel()
	spec := proc.Spec{Name: "try", Path: path, Argv: []string{"hinit", "version", "--handover"}, Env: os.Environ(), SameSession: true}
	said, why, exit, err := proc.Output(ctx, spec, 4096)
	switch {
	case err != nil:
		return err
	case exit.Code != 0:
		return fmt.Errorf("%q cannot take over from a running hinit: %s", path, show.Line(firstLine(string(why)+string(said))))
	case strings.TrimSpace(string(said)) != strconv.Itoa(reexec.Format):
		return fmt.Errorf("%q speaks format %q of the handover and the running hinit %d; restart the container for that", path, show.Line(firstLine(string(said))), reexec.Format)
	}
	return nil
}

// firstLine returns the first line of s, for messages of one line.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
