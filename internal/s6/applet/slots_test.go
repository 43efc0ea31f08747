package applet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/s6/formats"
)

type fakeInit struct {
	Supervisor
	slots     map[string]client.Slot
	refuseErr error // error of each request
	waitErrs  map[string]error
	commands  []string
}

func (f *fakeInit) Slot(_ context.Context, dir string) (client.Slot, error) {
	s, ok := f.slots[dir]
	switch {
	case f.refuseErr != nil:
		return s, f.refuseErr
	case !ok:
		return s, &client.Error{Kind: client.KindUnknown, Message: "no such slot"}
	}
	return s, nil
}

func (f *fakeInit) SlotControl(ctx context.Context, dir, flags string) error {
	if _, err := f.Slot(ctx, dir); err != nil {
		return err
	}
	f.commands = append(f.commands, flags+" "+filepath.Base(dir))
	return nil
}

func (f *fakeInit) SlotWait(ctx context.Context, dir, until string) (client.Slot, error) {
	s, err := f.Slot(ctx, dir)
	if err != nil {
		return s, err
	}
	if run, err := strconv.ParseUint(until[1:], 10, 64); err == nil && s.RunNumber > run {
		return s, nil // the slot has left the run that the client waits for
	}
	if err, known := f.waitErrs[filepath.Base(dir)+" "+until[:1]]; known {
		return s, err
	}
	<-ctx.Done()
	return s, ctx.Err()
}

func (f *fakeInit) ControlScanner(_ context.Context, flags string) error {
	f.commands = append(f.commands, "scan "+flags)
	return f.refuseErr
}

// lockScanDir makes the lock of a scan directory, which the scanner holds until the test ends.
func lockScanDir(t *testing.T, dir string) {
	t.Helper()
	lock, err := os.Create(filepath.Join(dir, ".s6-svscan/lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// A command to a directory without a scanner must not end the container. A dead s6-svscan leaves such a directory.
func TestACommandToAnotherScanDirectoryDoesNotReachTheContainer(t *testing.T) {
	init := scanDir(t)
	for _, dir := range []string{"up", "down"} {
		if err := os.MkdirAll(dir+"/.s6-svscan", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile("down/.s6-svscan/lock", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"up", "down"} {
		want := output{100, "", "s6-svscanctl: fatal: unable to control " + dir + ": supervisor not listening\n"}
		if got := runTool(init, "s6-svscanctl -t "+dir); got != want || len(init.commands) > 0 {
			t.Errorf("got %+v and the commands %q, want %+v", got, init.commands, want)
		}
	}
}

// scanDir makes a scan directory and its PID 1. The slots are up, down, told (which announces readiness) and stray (not
// supervised). The directory also contains a regular file.
func scanDir(t *testing.T) *fakeInit {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"up", "down", "told", "stray", ".s6-svscan"} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile("told/notification-fd", []byte("3\n"), 0o644), os.WriteFile("file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	lockScanDir(t, dir)
	ago := time.Now().Add(-90 * time.Second)
	return &fakeInit{slots: map[string]client.Slot{
		filepath.Join(dir, "up"):   {Name: "up", Up: true, WantUp: true, NormallyUp: true, EverStarted: true, PID: 4711, PGID: 4711, ExitCode: -1, Since: ago},
		filepath.Join(dir, "told"): {Name: "told", Up: true, WantUp: true, Ready: true, EverStarted: true, Notifies: true, PID: 4712, PGID: 4712, ExitCode: -1, Since: ago},
		filepath.Join(dir, "down"): {Name: "down", EverStarted: true, ExitCode: -1, Signal: 15, Since: ago},
	}, waitErrs: make(map[string]error)}
}

type output struct {
	code     int
	out, err string
}

func runTool(init *fakeInit, words string) output {
	args := strings.Fields(words)
	name, run, ok := Find("/command/" + args[0])
	if !ok {
		return output{code: -1}
	}
	var out, errs strings.Builder
	dial := func() (Supervisor, error) { return init, nil }
	if init == nil {
		dial = func() (Supervisor, error) {
			return nil, &client.Error{Kind: client.KindUnreachable, Message: "no hinit listens"}
		}
	}
	code := run(&Invocation{Name: name, Args: args[1:], In: os.Stdin, Out: &out, Err: &errs, Dial: dial})
	return output{code, out.String(), errs.String()}
}

func TestToolsAnswerAsThoseOfS6(t *testing.T) {
	for words, want := range map[string]output{
		"s6-svstat up":                     {out: "up (pid 4711) 90 seconds\n"},
		"s6-svstat ./up/":                  {out: "up (pid 4711) 90 seconds\n"},
		"s6-svstat told":                   {out: "up (pid 4712) 90 seconds, normally down, ready 90 seconds\n"},
		"s6-svstat down":                   {out: "down (signal SIGTERM) 90 seconds, ready 90 seconds\n"},
		"s6-svstat -n down":                {out: "down (signal 15) 90 seconds, ready 90 seconds\n"},
		"s6-svstat -o pid up":              {out: "4711\n"},
		"s6-svstat -o pid down":            {out: "-1\n"},
		"s6-svstat -o up, up":              {out: "true\n"},
		"s6-svstat -o up down":             {out: "false\n"},
		"s6-svstat -uwNrpgest up":          {out: "true true true false 4711 4711 -1 NA 90\n"},
		"s6-svstat -p -o signal,signum up": {out: "4711 NA -1\n"},
		"s6-svstat stray":                  {1, "", "s6-svstat: fatal: unable to read status for stray: s6-supervise not running\n"},
		"s6-svstat gone":                   {1, "", "s6-svstat: fatal: unable to read status for gone: s6-supervise not running\n"},
		"s6-svstat -o bogus up":            {100, "", "s6-svstat: fatal: invalid option field: bogus\n"},
		"s6-svstat":                        {100, "", "s6-svstat: usage: s6-svstat " + tools["s6-svstat"].usage + "\n"},
		"s6-svstat -Z up":                  {100, "", "s6-svstat: usage: s6-svstat " + tools["s6-svstat"].usage + "\n"},
		"s6-svok up":                       {},
		"s6-svok stray":                    {code: 1},
		"s6-svok gone":                     {code: 1},
		"s6-svok":                          {100, "", "s6-svok: usage: s6-svok servicedir\n"},
		"s6-svc -du up down":               {},
		"s6-svc up":                        {},
		"s6-svc gone":                      {111, "", "s6-svc: warning: unable to control gone: No such file or directory\n"},
		"s6-svc -u stray":                  {102, "", "s6-svc: warning: unable to control stray: supervisor not listening\n"},
		"s6-svc -u file":                   {111, "", "s6-svc: warning: unable to control file: Not a directory\n"},
		"s6-svstat file":                   {111, "", "s6-svstat: fatal: unable to check file: Not a directory\n"},
		"s6-svok file":                     {111, "", "s6-svok: fatal: unable to check file: Not a directory\n"},
		"s6-svwait -u file":                {111, "", "s6-svwait: fatal: unable to subscribe to events for file: Not a directory\n"},
		"s6-svscanctl -a file":             {111, "", "s6-svscanctl: fatal: unable to control file: Not a directory\n"},
		"s6-svdt file":                     {111, "", "s6-svdt: fatal: unable to read death tally for service file: Not a directory\n"},
		"s6-svc -Z up":                     {100, "", "s6-svc: usage: s6-svc " + tools["s6-svc"].usage + "\n"},
		"s6-svc -wu -u up":                 {},
		"s6-svc -wD -T 20 -d up":           {99, "", "s6-svlisten: fatal: timed out\n"},
		"s6-svc -wU -u up":                 {0, "", "s6-svc: warning: up/notification-fd not present - ignoring request for readiness notification\n"},
		"s6-svc -wU -T 20 -u told":         {99, "", "s6-svlisten: fatal: timed out\n"},
		"s6-svc -wu gone":                  {111, "", "s6-svc: warning: unable to control gone: No such file or directory\n"},
		"s6-svwait up":                     {},
		"s6-svwait":                        {},
		"s6-svwait -D -t 20 up":            {99, "", "s6-svwait: fatal: timed out\n"},
		"s6-svwait -D down":                {},
		"s6-svwait -o -d -t 5000 up down":  {},
		"s6-svwait -a -d -t 20 up down":    {99, "", "s6-svwait: fatal: timed out\n"},
		"s6-svwait -u down":                {1, "", "s6-svwait: fatal: some services reported permanent failure or their supervisor died\n"},
		"s6-svwait -u gone":                {111, "", "s6-svwait: fatal: unable to subscribe to events for gone: No such file or directory\n"},
		"s6-svwait -u stray":               {111, "", "s6-svwait: fatal: unable to s6_svstatus_read: No such file or directory\n"},
		"s6-svwait -t x up":                {100, "", "s6-svwait: usage: s6-svwait [ -U | -u | -d | -D | -r | -R ] [ -a | -o ] [ -t timeout ] servicedir...\n"},
		"s6-svscanctl -an .":               {},
		"s6-svscanctl .":                   {},
		"s6-svscanctl -a gone":             {111, "", "s6-svscanctl: fatal: unable to control gone: No such file or directory\n"},
		"s6-svscanctl -a up":               {100, "", "s6-svscanctl: fatal: unable to control up: supervisor not listening\n"},
		"s6-svscanctl -Q .":                {100, "", "s6-svscanctl: usage: s6-svscanctl [ -zabhitqnN ] svscandir\n"},
	} {
		t.Run(words, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in virtual time, because the tools count seconds
				init := scanDir(t)
				init.waitErrs = map[string]error{
					"up u": nil, "down d": nil, "down D": nil, "down u": &client.Error{Kind: client.KindPermanent, Message: "it is parked"},
				}
				if got := runTool(init, words); got != want {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
			})
		})
	}
}

func TestCommandsReachTheInitInTheirOrder(t *testing.T) {
	init := scanDir(t)
	for words, want := range map[string][]string{
		"s6-svc -du up down":                    {"du up", "du down"},
		"s6-svc -d -u up":                       {"du up"},
		"s6-svc -OQ told":                       {"OQ told"},
		"s6-svc -s USR1 -t up":                  {"1t up"},
		"s6-svc -s SIGUSR1 -s 12 up":            {"12 up"},
		"s6-svc -skill up":                      {"k up"},
		"s6-svc -wu -u up":                      {"u up"},
		"s6-svc -w D -T 1500 -d down":           {"d down"},
		"s6-svc -wu -T0 -u up":                  {"u up"},
		"s6-svc up":                             nil,
		"s6-svc -- up":                          nil,
		"s6-svc -" + formats.SvcLetters + " up": {formats.SvcLetters + " up"},
		"s6-svscanctl -an .":                    {"scan an"},
		"s6-svscanctl -a -n .":                  {"scan an"},
	} {
		init.commands, init.waitErrs = nil, map[string]error{"up u": nil, "down D": nil}
		if got := runTool(init, words); got != (output{}) || !slices.Equal(init.commands, want) {
			t.Errorf("%s: %+v, and the init was sent %q, want %q", words, got, init.commands, want)
		}
	}
	for _, words := range []string{"-uwuT0 up", "-s SEGV up", "-Z up", "-wq up", "-wuu up", "-T x up", "-T -1 up", "-u", "-u -T", "", "-u -- "} {
		init.commands = nil
		if got := runTool(init, "s6-svc "+words); got.code != exitUsage || init.commands != nil {
			t.Errorf("%q: %+v, and the init was sent %q", words, got, init.commands)
		}
	}
}

func FuzzSvcWordsNeverHurt(f *testing.F) {
	f.Add("-wu\x00-T\x00100\x00-d\x00/run/service/a")
	f.Add("-s\x00SIGTERM\x00--\x00-x")
	f.Fuzz(func(t *testing.T, joined string) {
		svc := tools["s6-svc"]
		options, words, ok := svc.split(strings.Split(joined, "\x00"))
		for _, o := range options {
			if !ok || !strings.ContainsRune(svc.flags+svc.valueFlags, rune(o.letter)) {
				t.Fatalf("%q: %t, %q before %q", joined, ok, options, words)
			}
		}
	})
}

func TestWithoutInitNobodyListens(t *testing.T) {
	scanDir(t)
	for words, want := range map[string]output{
		"s6-svstat up":       {1, "", "s6-svstat: fatal: unable to read status for up: s6-supervise not running\n"},
		"s6-svok up":         {code: 1},
		"s6-svc -u up":       {102, "", "s6-svc: warning: unable to control up: supervisor not listening\n"},
		"s6-svc -u gone":     {111, "", "s6-svc: warning: unable to control gone: No such file or directory\n"},
		"s6-svwait -u up":    {111, "", "s6-svwait: fatal: unable to s6_svstatus_read: No such file or directory\n"},
		"s6-svscanctl -a .":  {100, "", "s6-svscanctl: fatal: unable to control .: supervisor not listening\n"},
		"s6-svscanctl -a up": {100, "", "s6-svscanctl: fatal: unable to control up: supervisor not listening\n"},
	} {
		if got := runTool(nil, words); got != want {
			t.Errorf("%s: got %+v, want %+v", words, got, want)
		}
	}
}

func TestAForbiddenClientIsRefusedAsByS6(t *testing.T) {
	init := scanDir(t)
	init.refuseErr = &client.Error{Kind: client.KindNotAllowed, Message: "only root and the agent's user may do that"}
	for words, want := range map[string]output{
		"s6-svstat up":      {111, "", "s6-svstat: fatal: unable to check up: Permission denied\n"},
		"s6-svok up":        {111, "", "s6-svok: fatal: unable to check up: Permission denied\n"},
		"s6-svc -u up":      {111, "", "s6-svc: warning: unable to control up: Permission denied\n"},
		"s6-svwait up":      {111, "", "s6-svwait: fatal: unable to subscribe to events for up: Permission denied\n"},
		"s6-svscanctl -a .": {111, "", "s6-svscanctl: fatal: unable to control .: Permission denied\n"},
	} {
		if got := runTool(init, words); got != want {
			t.Errorf("%s: got %+v, want %+v", words, got, want)
		}
	}
}

// restartingInit is a PID 1 whose services are up again before a client can see their end.
type restartingInit struct{ *fakeInit }

func (r restartingInit) SlotControl(ctx context.Context, dir, flags string) error {
	s := r.slots[dir]
	s.PID, s.RunNumber, s.Since = s.PID+1, s.RunNumber+1, time.Now()
	r.slots[dir] = s
	return r.fakeInit.SlotControl(ctx, dir, flags)
}

func TestARestartIsSeenThoughItWasFasterThanTheWait(t *testing.T) {
	// The tool must notice the end although the service is up again.
	for _, words := range []string{"-wr -T 20000 -r up", "-wd -T 20000 -k up", "-wD -T 20000 -k up"} {
		init := restartingInit{scanDir(t)}
		var out, errs strings.Builder
		c := &Invocation{Name: "s6-svc", Args: strings.Fields(words), Out: &out, Err: &errs, Dial: func() (Supervisor, error) { return init, nil }}
		if code := tools["s6-svc"].main(c); code != 0 || errs.Len() > 0 {
			t.Errorf("%s: exit code %d, %s", words, code, errs.String())
		}
	}
}

func TestASlotThatIsTakenAwayIsDown(t *testing.T) {
	init := scanDir(t)
	init.waitErrs["up D"] = &client.Error{Kind: client.KindUnknown, Message: "no such slot"}
	if got := runTool(init, "s6-svwait -D -t 10000 up"); got != (output{}) {
		t.Errorf("%+v", got)
	}
	init.waitErrs["up u"] = &client.Error{Kind: client.KindUnknown, Message: "no such slot"}
	if got := runTool(init, "s6-svwait -u -t 10000 up"); got.code != 111 {
		t.Errorf("%+v", got)
	}
}

func TestAReaderThatIsGoneIsNoSuccess(t *testing.T) {
	init := scanDir(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	c := &Invocation{Name: "s6-svstat", Args: []string{"up"}, Out: w, Err: &errs, Dial: func() (Supervisor, error) { return init, nil }}
	if code := tools["s6-svstat"].main(c); code != 111 || !strings.Contains(errs.String(), "unable to write to stdout") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
