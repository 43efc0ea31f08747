package agentcli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/testkit"
)

// output holds what a command printed and its exit code.
type output struct {
	code      int
	out, errs string
}

type fakeSupervisor struct {
	root          string // root directory of the image in the test
	statusError   error  // error of a request for the status
	home          string
	services      []client.Service
	commandErrors map[string]error // result of a command on a slot, by slot
	orders        chan string
}

func (g *fakeSupervisor) Status(context.Context, ...string) (client.Status, error) {
	return client.Status{Init: client.Init{PID: 1, Home: g.home}, Services: g.services}, g.statusError
}

func (g *fakeSupervisor) Order(_ context.Context, verb client.Verb, name string, w client.WaitOptions) (client.Service, error) {
	g.orders <- describeWait(string(verb), w) + " " + name
	if err, known := g.commandErrors[name]; known {
		return client.Service{}, err
	}
	if !slices.ContainsFunc(g.services, func(s client.Service) bool { return s.Name == name }) {
		return client.Service{}, &client.Error{Kind: client.KindUnknown, Message: "no such profile or service"}
	}
	return client.Service{Name: name}, nil
}

func describeWait(verb string, w client.WaitOptions) string {
	if !w.Wait {
		return "impatient " + verb
	}
	return verb
}

// newFakeSupervisor makes a home with the profiles coder and writer, which PID 1 knows, and the profile new, which PID 1 doesn't
// know.
func newFakeSupervisor(t *testing.T) *fakeSupervisor {
	t.Helper()
	home := t.TempDir()
	for _, name := range []string{"coder", "writer", "new"} {
		if err := os.MkdirAll(filepath.Join(home, "profiles", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	if err := os.MkdirAll(root+s6BaseDir, 0o755); err != nil {
		t.Fatal(err)
	}
	since := time.Now().Add(-90 * time.Second)
	return &fakeSupervisor{
		root: root, home: home, orders: make(chan string, 100), commandErrors: make(map[string]error),
		services: []client.Service{
			{Name: "dashboard", Kind: client.KindService, State: client.StateUp, Want: client.WantUp, PID: 9, Since: since},
			{Name: "gateway-coder", Profile: "coder", Kind: client.KindGateway, State: client.StateUp, Want: client.WantUp, Ready: true, PID: 4711, Since: since},
			{Name: "gateway-default", Profile: "default", Kind: client.KindGateway, State: client.StateDown, Want: client.WantDown, Since: since},
			{Name: "gateway-writer", Profile: "writer", Kind: client.KindGateway, State: client.StateBackoff, Want: client.WantUp, CrashLoop: true, Since: since, Reason: "it exited with code 1\nand more"},
		},
	}
}

// passedToAgent is the exit code of a command that is passed on to the agent, whose program doesn't exist here.
const passedToAgent = exitNotFound

func (g *fakeSupervisor) runCommand(words string, env ...string) (output, []string) {
	var out, errs strings.Builder
	c := &Call{
		RootPrefix: g.root, Args: append([]string{"/nonexistent/agent"}, strings.Fields(words)...), Out: &out, Err: &errs,
		Env: append([]string{"HERMES_HOME=" + g.home}, env...), Dial: func() (Supervisor, error) { return g, nil },
	}
	s := output{c.Main(), out.String(), errs.String()}
	var done []string
	for len(g.orders) > 0 {
		done = append(done, <-g.orders)
	}
	slices.Sort(done)
	return s, done
}

func TestGatewayCommandsDoWhatTheAgentsDoAndSayWhatItSays(t *testing.T) {
	const unknown = "✗ no such gateway 'new': register it with `hermes profile create new` first, or pass an existing profile name via `-p <name>`\n"
	for words, want := range map[string]struct {
		output
		done string
	}{
		"gateway start":                   {done: "start gateway-default"},
		"-p coder gateway start":          {done: "start gateway-coder"},
		"gateway stop --profile=coder":    {done: "stop gateway-coder"},
		"gateway restart --profile CODER": {done: "restart gateway-coder"},
		"-p new gateway stop":             {output{1, unknown, ""}, "stop gateway-new"},
		"-p new gateway start":            {output{1, unknown, ""}, "start gateway-new"},
		"-p gone gateway start":           {output{1, "", "Error: Profile 'gone' does not exist. Create it with: hermes profile create gone\n"}, ""},
		"gateway stop --all":              {output{0, "✓ Stopped 3 profile gateway(s) under s6\n", ""}, "stop gateway-coder, stop gateway-default, stop gateway-writer"},
		"gateway restart --all":           {output{0, "✓ Restarted 2 profile gateway(s) under s6\n", ""}, "restart gateway-coder, restart gateway-writer"},
		"-p coder gateway status":         {output{0, "✓ Gateway is running (PID: 4711)\n  Manager: s6 (container supervisor)\n  State: up for 1m30s\n\nOther profiles:\n  ✗ default\n  ✗ writer\n", ""}, ""},
		"gateway status":                  {output{0, "✗ Gateway is not running\n  Manager: s6 (container supervisor)\n  Service: installed but stopped\n  State: down for 1m30s\n\nOther profiles:\n  ✓ coder (PID: 4711)\n  ✗ writer\n", ""}, ""},
		"-p writer gateway status":        {output{0, "✗ Gateway is not running\n  Manager: s6 (container supervisor)\n  State: backoff (crash-loop) for 1m30s: it exited with code 1\n\nOther profiles:\n  ✗ default\n  ✓ coder (PID: 4711)\n", ""}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			got, done := newFakeSupervisor(t).runCommand(words)
			if got != want.output || strings.Join(done, ", ") != want.done {
				t.Errorf("%s: %+v, done %q\nwant %+v", words, got, done, want)
			}
		})
	}
}

// The status must escape control characters in the reason of a gateway. A platform could otherwise send a sequence that sets
// the title of root's terminal.
func TestTheReasonOfAGatewayControlsNoTerminal(t *testing.T) {
	g := newFakeSupervisor(t)
	g.services[3].Reason = "unhealthy: \x1b]0;owned\a"
	if got, _ := g.runCommand("-p writer gateway status"); strings.ContainsAny(got.out, "\x1b\a") || !strings.Contains(got.out, "owned") {
		t.Errorf("%q", got.out)
	}
}

func TestAGatewayThatDoesNotComeUpIsReported(t *testing.T) {
	g := newFakeSupervisor(t)
	g.commandErrors["gateway-coder"] = &client.Error{Kind: client.KindFailed, Message: "gateway-coder exited with code 1 after 0.3s\nlast lines:\nno token"}
	got, _ := g.runCommand("-p coder gateway start")
	want := output{1, "✗ cannot start the gateway of profile 'coder': gateway-coder exited with code 1 after 0.3s\n  last lines:\n  no token\n  see: hinit status coder; hinit logs coder\n", ""}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	got, _ = g.runCommand("gateway stop --all")
	want = output{0, "✗ Could not stop gateway-coder: gateway-coder exited with code 1 after 0.3s\n  last lines:\n  no token\n✓ Stopped 2 profile gateway(s) under s6\n", ""}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	g.services = g.services[:1]
	if got, _ := g.runCommand("gateway stop --all"); got != (output{0, "✗ No profile gateways registered under s6\n", ""}) {
		t.Errorf("%+v", got)
	}
}

func TestAProfileThatAppearsIsRegisteredAndStarted(t *testing.T) {
	g := newFakeSupervisor(t)
	g.commandErrors["gateway-new"] = nil // hinit reads the profiles again when a command names an unknown one
	got, done := g.runCommand("-p new gateway start")
	if want := (output{0, "✓ registered the s6 gateway slot for profile 'new'\n", ""}); got != want || fmt.Sprint(done) != "[start gateway-new]" {
		t.Errorf("%+v, %q", got, done)
	}
}

func TestTheProfileIsTheOneTheAgentWouldTake(t *testing.T) {
	g := newFakeSupervisor(t)
	named := "HERMES_HOME=" + filepath.Join(g.home, "profiles", "coder")
	for name, c := range map[string]struct {
		words, sticky string
		env           []string
		done          string
	}{
		"HERMES_HOME of a profile":    {words: "gateway start", env: []string{named}, done: "start gateway-coder"},
		"-p wins over HERMES_HOME":    {words: "-p writer gateway start", env: []string{named}, done: "start gateway-writer"},
		"the chosen profile":          {words: "gateway start", sticky: "writer\n", done: "start gateway-writer"},
		"-p wins over the chosen one": {words: "-p coder gateway start", sticky: "writer\n", done: "start gateway-coder"},
		"-p default":                  {words: "-p default gateway start", sticky: "writer\n", env: []string{named}, done: "start gateway-default"},
		"HERMES_HOME wins, too":       {words: "gateway start", sticky: "writer\n", env: []string{named}, done: "start gateway-coder"},
		"default was chosen":          {words: "gateway start", sticky: "default\n", done: "start gateway-default"},
		"a supervised child has none": {words: "gateway start", sticky: "writer\n", env: []string{"HERMES_SUPERVISED_CHILD=1"}, done: "start gateway-default"},
	} {
		t.Run(name, func(t *testing.T) {
			sticky := filepath.Join(g.home, "active_profile")
			if err := os.WriteFile(sticky, []byte(c.sticky), 0o644); err != nil {
				t.Fatal(err)
			}
			got, done := g.runCommand(c.words, c.env...)
			if got.code != 0 || strings.Join(done, ",") != c.done {
				t.Errorf("%+v, done %q, want %q", got, done, c.done)
			}
		})
	}
}

func TestWhatIsNotCertainGoesToTheAgentBeforeAnythingIsDone(t *testing.T) {
	for name, c := range map[string]struct {
		words string
		env   []string
		spoil func(*testing.T, *fakeSupervisor)
	}{
		"another home":        {words: "gateway stop", env: []string{"HERMES_HOME=/elsewhere"}},
		"no home":             {words: "gateway stop", env: []string{"HERMES_HOME="}},
		"a name that is none": {words: "-p ../x gateway stop"},
		"a reserved name":     {words: "-p root gateway stop"},
		"other words":         {words: "gateway run"},
		"start --all":         {words: "gateway start --all"},
		"the chosen one gone": {words: "gateway stop", spoil: func(t *testing.T, g *fakeSupervisor) { writeFile(t, g.home+"/active_profile", "gone") }},
		"the choice is a link": {words: "gateway stop", spoil: func(t *testing.T, g *fakeSupervisor) {
			writeFile(t, g.home+"/elsewhere", "writer")
			if err := os.Symlink("elsewhere", g.home+"/active_profile"); err != nil {
				t.Fatal(err)
			}
		}},
		"the choice is a FIFO": {words: "gateway stop", spoil: func(t *testing.T, g *fakeSupervisor) {
			if err := unix.Mkfifo(g.home+"/active_profile", 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		"not allowed":   {words: "gateway stop", spoil: func(_ *testing.T, g *fakeSupervisor) { g.statusError = &client.Error{Kind: client.KindNotAllowed} }},
		"not reachable": {words: "gateway stop", spoil: func(_ *testing.T, g *fakeSupervisor) { g.statusError = &client.Error{Kind: client.KindUnreachable} }},
		"may not control": {words: "-p writer gateway stop", spoil: func(_ *testing.T, g *fakeSupervisor) {
			g.commandErrors["gateway-writer"] = &client.Error{Kind: client.KindNotAllowed}
			g.orders = make(chan string, 1)
		}},
		"status of no slot":   {words: "-p new gateway status"},
		"status, run by hand": {words: "gateway status", spoil: func(t *testing.T, g *fakeSupervisor) { writeFile(t, g.home+"/gateway.pid", "{}") }},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFakeSupervisor(t)
			if c.spoil != nil {
				c.spoil(t, g)
			}
			got, done := g.runCommand(c.words, c.env...)
			if got.code != passedToAgent || got.out != "" || len(done) > 0 && name != "may not control" {
				t.Errorf("%+v, done %q", got, done)
			}
		})
	}
}

// Without s6, the agent reports success although it does nothing, or waits for ever. So only commands that change nothing may
// go to the agent.
func TestWithoutS6NothingIsCalledDoneThatIsNot(t *testing.T) {
	bare := func(t *testing.T) *fakeSupervisor {
		g := newFakeSupervisor(t)
		if err := os.RemoveAll(g.root + "/run"); err != nil {
			t.Fatal(err)
		}
		return g
	}
	for name, c := range map[string]struct {
		words string
		env   []string
		spoil error
		says  string
	}{
		"not reachable": {words: "gateway start", spoil: &client.Error{Kind: client.KindUnreachable, Message: "cannot reach hinit"}, says: "✗ cannot do `agent gateway start`: cannot reach hinit\n"},
		"not allowed":   {words: "gateway restart", spoil: &client.Error{Kind: client.KindNotAllowed, Message: "uid 7 may not"}, says: "✗ cannot do `agent gateway restart`: uid 7 may not\n"},
		"another home":  {words: "gateway stop", env: []string{"HERMES_HOME=/"}, says: "✗ cannot do `agent gateway stop`: hinit runs the gateways of "},
		"start --all":   {words: "gateway start --all", says: "✗ cannot do `agent gateway start --all`: hinit takes start, "},
	} {
		g := bare(t)
		g.statusError = c.spoil
		got, done := g.runCommand(c.words, c.env...)
		if got.code != cmdline.ExitFailed || !strings.HasPrefix(got.out, c.says) || len(done) > 0 {
			t.Errorf("%s: %+v, done %q", name, got, done)
		}
	}
	g := bare(t)
	if got, done := g.runCommand("-p coder gateway restart"); got.code != 0 || strings.Join(done, ",") != "restart gateway-coder" {
		t.Errorf("%+v, done %q", got, done)
	}
	g.statusError = &client.Error{Kind: client.KindUnreachable}
	if got, _ := g.runCommand("gateway status"); got.code != passedToAgent {
		t.Errorf("%+v", got)
	}
}

func TestAGatewayCannotStopItself(t *testing.T) {
	for _, verb := range []string{"stop", "restart"} {
		got, done := newFakeSupervisor(t).runCommand("gateway "+verb, "_HERMES_GATEWAY=1")
		if got.code != 1 || !strings.HasPrefix(got.out, "✗ refusing to "+verb) || len(done) > 0 {
			t.Errorf("%+v, done %q", got, done)
		}
	}
	if got, done := newFakeSupervisor(t).runCommand("gateway start", "_HERMES_GATEWAY=1"); got.code != 0 || len(done) != 1 {
		t.Errorf("%+v, done %q", got, done)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestProfilesAreListedByHinitOnlyWhereTheAgentsUserCanNotLookIntoTheirHomes(t *testing.T) {
	testkit.NeedRoot(t)
	g := newFakeSupervisor(t)
	list := func(uid int) int {
		var errs strings.Builder
		c := &Call{
			Args: []string{"/nonexistent/agent", "profile", "list"}, Err: &errs,
			Dial: func() (Supervisor, error) { return g, nil }, ListProfiles: func() int { return 42 },
		}
		code := make(chan int)
		go func() {
			runtime.LockOSThread()
			_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
			code <- c.Main()
		}()
		return <-code
	}
	for mode, want := range map[string]int{"": passedToAgent, "files": passedToAgent, "user": 42} {
		g.services[1].Isolation = &client.Isolation{Mode: mode}
		if got := list(10000); got != want {
			t.Errorf("with isolation %q the code is %d, want %d", mode, got, want)
		}
	}
	if got := list(0); got != passedToAgent {
		t.Errorf("root, who can look into each home, gets %d", got)
	}
}
