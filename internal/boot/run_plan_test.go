package boot

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/testkit"
)

const agentBinary = "/opt/hermes/.venv/bin/hermes"

func findInImage(word string) (string, bool) {
	switch word {
	case "sleep", "sh", "bash", "echo", "test", "true":
		return "/usr/bin/" + word, true
	case "hermes":
		return "/opt/hermes/bin/hermes", true
	case "/bin/sh", "/opt/tool", agentBinary, "./tool":
		return word, true
	}
	return "", false
}

func findNothing(string) (string, bool) { return "", false }

func envLookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func splitWords(s string) []string { return strings.Fields(s) }

func agentPlan(args ...string) RunPlan {
	return RunPlan{Path: agentBinary, Argv: append([]string{agentBinary}, args...)}
}

func directPlan(path string, argv ...string) RunPlan { return RunPlan{Path: path, Argv: argv} }

func shellPlan(argv ...string) RunPlan {
	return RunPlan{Path: "/bin/sh", Argv: append([]string{"sh", "-c", `"$@"`, "sh"}, argv...)}
}

// A word that is both a subcommand of the agent and a program, such as login, must run the agent.
func TestASubcommandOfTheAgentIsNoProgram(t *testing.T) {
	for first, want := range map[string]RunPlan{"sleep": agentPlan("sleep", "1"), "echo": directPlan("/usr/bin/echo", "echo", "1"), "/usr/bin/sleep": agentPlan("/usr/bin/sleep", "1")} {
		got := PlanRun(CommandLine{Args: []string{first, "1"}, AgentBinary: agentBinary, Subcommands: []string{"chat", "sleep"}, Env: envLookup(nil), FindProgram: findInImage})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", first, got, want)
		}
	}
}

func TestRouteCommands(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want RunPlan
	}{
		{"no arguments", nil, agentPlan()},
		{"option", splitWords("--version"), agentPlan("--version")},
		{"help", splitWords("--help"), agentPlan("--help")},
		{"tui", splitWords("--tui"), agentPlan("--tui")},
		{"subcommand", splitWords("chat -q hi"), agentPlan("chat", "-q", "hi")},
		{"setup", splitWords("setup"), agentPlan("setup")},
		{"program", splitWords("sleep 1"), directPlan("/usr/bin/sleep", "sleep", "1")},
		{"shell", []string{"bash", "-c", "echo ok"}, directPlan("/usr/bin/bash", "bash", "-c", "echo ok")},
		{"exact argv", []string{"sh", "-c", "exit 42", "", "a  b", "--"}, directPlan("/usr/bin/sh", "sh", "-c", "exit 42", "", "a  b", "--")},
		{"agent by name", splitWords("hermes chat"), directPlan("/opt/hermes/bin/hermes", "hermes", "chat")},
		{"agent by path", splitWords(agentBinary + " chat"), directPlan(agentBinary, agentBinary, "chat")},
		{"path", splitWords("/opt/tool x"), directPlan("/opt/tool", "/opt/tool", "x")},
		{"relative path", splitWords("./tool"), directPlan("./tool", "./tool")},
		{"missing path", splitWords("/opt/none x"), agentPlan("/opt/none", "x")},
		{"missing path that ends like the agent", splitWords("/opt/none/hermes x"), agentPlan("/opt/none/hermes", "x")},
		{"empty word", []string{""}, agentPlan("")},
		{"builtin", splitWords("cd /tmp"), shellPlan("cd", "/tmp")},
		{"exit", splitWords("exit 3"), shellPlan("exit", "3")},
		{"keyword", splitWords("if true"), shellPlan("if", "true")},
		{"builtin that is a program too", splitWords("echo x"), directPlan("/usr/bin/echo", "echo", "x")},
		{"leading --", splitWords("-- sleep 1"), directPlan("/usr/bin/sleep", "sleep", "1")},
		{"only one --", splitWords("-- -- sleep"), agentPlan("--", "sleep")},
		{"wrapper", splitWords("/opt/hermes/docker/main-wrapper.sh sleep 1"), directPlan("/usr/bin/sleep", "sleep", "1")},
		{"wrapper alone", splitWords("/opt/hermes/docker/main-wrapper.sh"), agentPlan()},
		{"wrapper then --", splitWords("/x/main-wrapper.sh -- a"), agentPlan("--", "a")},
		{"init and wrapper", splitWords("/init /opt/hermes/docker/main-wrapper.sh chat"), agentPlan("chat")},
		{"init alone", splitWords("/init sleep 1"), directPlan("/usr/bin/sleep", "sleep", "1")},
		{"dispatcher", splitWords("/opt/hermes/docker/entrypoint-dispatch.sh chat"), agentPlan("chat")},
		{"wrapper without a path is no wrapper", splitWords("main-wrapper.sh"), agentPlan("main-wrapper.sh")},
		{"wrapper later is an argument", splitWords("sleep /x/main-wrapper.sh"), directPlan("/usr/bin/sleep", "sleep", "/x/main-wrapper.sh")},
		{"gateway verb", splitWords("gateway stop"), agentPlan("gateway", "stop")},
		{"gateway help", splitWords("gateway --help"), agentPlan("gateway", "--help")},
		{"gateway run help", splitWords("gateway run -h"), agentPlan("gateway", "run", "-h")},
		{"profile flag of something else", splitWords("-p coder chat"), agentPlan("-p", "coder", "chat")},
		{"profile flag without a name", splitWords("gateway run -p"), agentPlan("gateway", "run", "-p")},
		{"impossible profile", splitWords("-p ../x gateway run"), agentPlan("-p", "../x", "gateway", "run")},
		{"gateway inside a shell", []string{"sh", "-c", "gateway run"}, directPlan("/usr/bin/sh", "sh", "-c", "gateway run")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := PlanRun(CommandLine{Argv0: "/init", Args: tt.args, AgentBinary: agentBinary, Env: envLookup(nil), FindProgram: findInImage})
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestRouteWithoutPrograms(t *testing.T) {
	for args, want := range map[string]RunPlan{
		"":              directPlan("/a/agent", "/a/agent"),
		"agent chat":    directPlan("/a/agent", "/a/agent", "chat"),
		"hermes chat":   directPlan("/a/agent", "/a/agent", "chat"),
		"cd /tmp":       directPlan("/a/agent", "/a/agent", "cd", "/tmp"),
		"/bin/agent -v": directPlan("/a/agent", "/a/agent", "/bin/agent", "-v"),
	} {
		got := PlanRun(CommandLine{Argv0: "hinit", Args: splitWords(args), AgentBinary: "/a/agent", Env: envLookup(nil), FindProgram: findNothing})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %+v", args, got, want)
		}
	}
	got := PlanRun(CommandLine{Argv0: "hinit", Args: splitWords("agent gateway run"), AgentBinary: "/a/agent", Env: envLookup(nil), FindProgram: findNothing})
	if !got.Supervise || got.Profile != "default" {
		t.Errorf("the agent's own name before gateway run: %+v", got)
	}
}

func TestRouteGateway(t *testing.T) {
	up := func(profile string, named bool, ignored ...string) RunPlan {
		return RunPlan{Supervise: true, Profile: profile, ProfileIsExplicit: named, IgnoredWords: ignored}
	}
	legacy := func(r RunPlan) RunPlan {
		r.LegacyGatewayRun = true
		return r
	}
	front := func(r RunPlan, profile string, named bool) RunPlan {
		r.ForegroundGateway, r.Profile, r.ProfileIsExplicit = true, profile, named
		return r
	}
	noSupervise := func(v string) map[string]string { return map[string]string{"HERMES_GATEWAY_NO_SUPERVISE": v} }
	for _, tt := range []struct {
		name, args string
		env        map[string]string
		want       RunPlan
	}{
		{"run", "gateway run", nil, legacy(up("default", false))},
		{"bare", "gateway", nil, up("default", false)},
		{"with the agent's name", "hermes gateway run", nil, legacy(up("default", false))},
		{"with the agent's path", agentBinary + " gateway run", nil, legacy(up("default", false))},
		{"through the wrapper", "/opt/hermes/docker/main-wrapper.sh gateway run", nil, legacy(up("default", false))},
		{"through everything", "/init /opt/hermes/docker/main-wrapper.sh hermes gateway run", nil, legacy(up("default", false))},
		{"through the dispatcher", "/init /x/main-wrapper.sh /x/entrypoint-dispatch.sh gateway run", nil, legacy(up("default", false))},
		{"--replace changes nothing", "gateway run --replace", nil, legacy(up("default", false))},
		{"other words are named", "gateway run --replace -v --force", nil, legacy(up("default", false, "-v", "--force"))},
		{"profile before", "-p coder gateway run", nil, up("coder", true)},
		{"profile before, long", "--profile coder gateway run", nil, up("coder", true)},
		{"profile before, joined", "--profile=coder gateway", nil, up("coder", true)},
		{"profile after", "gateway run -p coder -v", nil, up("coder", true, "-v")},
		{"profile between", "hermes gateway -p coder run", nil, up("coder", true)},
		{"profile is normalised", "-p CoDer gateway run", nil, up("coder", true)},
		{"root profile by name", "-p Default gateway run", nil, up("default", true)},
		{"flag", "gateway run --no-supervise", nil, front(agentPlan("gateway", "run", "--no-supervise"), "default", false)},
		{"flag with profile", "-p a gateway run --no-supervise", nil, front(agentPlan("-p", "a", "gateway", "run", "--no-supervise"), "a", true)},
		{"flag, agent by name", "hermes gateway run --no-supervise", nil, front(directPlan("/opt/hermes/bin/hermes", "hermes", "gateway", "run", "--no-supervise"), "default", false)},
		{"variable 1", "gateway run", noSupervise("1"), front(agentPlan("gateway", "run"), "default", false)},
		{"variable tRuE", "gateway", noSupervise("tRuE"), front(agentPlan("gateway"), "default", false)},
		{"variable yes", "-p x gateway run", noSupervise("yes"), front(agentPlan("-p", "x", "gateway", "run"), "x", true)},
		{"variable on is no yes", "gateway run", noSupervise("on"), legacy(up("default", false))},
		{"variable 0", "gateway run", noSupervise("0"), legacy(up("default", false))},
		{"variable empty", "gateway run", noSupervise(""), legacy(up("default", false))},
		{"supervised child", "gateway run", map[string]string{"HERMES_S6_SUPERVISED_CHILD": "0"}, front(agentPlan("gateway", "run"), "default", false)},
		{"supervised child empty", "gateway run", map[string]string{"HERMES_S6_SUPERVISED_CHILD": ""}, legacy(up("default", false))},
		{"removed switch", "gateway run", map[string]string{"HERMES_SKIP_PROFILE_RECONCILE": "1"}, legacy(up("default", false))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := PlanRun(CommandLine{Argv0: "/init", Args: splitWords(tt.args), AgentBinary: agentBinary, Env: envLookup(tt.env), FindProgram: findInImage})
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestRouteGatewayProgram(t *testing.T) {
	look := func(word string) (string, bool) { return "/usr/bin/" + word, word == "gateway" }
	got := PlanRun(CommandLine{Argv0: "/init", Args: splitWords("gateway run"), AgentBinary: agentBinary, Env: envLookup(nil), FindProgram: look})
	if want := directPlan("/usr/bin/gateway", "gateway", "run"); !reflect.DeepEqual(got, want) {
		t.Errorf("a program named gateway: got %+v", got)
	}
}

func TestRouteDashboardOnly(t *testing.T) {
	for args, want := range map[string]bool{
		"dashboard": true, "dashboard --port 1": true, "hermes dashboard": true, agentBinary + " dashboard": true,
		"/opt/hermes/docker/main-wrapper.sh hermes dashboard": true, "/init /x/main-wrapper.sh dashboard": true, "-- dashboard": true,
		"": false, "chat": false, "-p x dashboard": false, "hermes": false, "hermes hermes dashboard": false, "sleep dashboard": false,
		"gateway run": false, "dashboards": false,
	} {
		got := PlanRun(CommandLine{Argv0: "/init", Args: splitWords(args), AgentBinary: agentBinary, Env: envLookup(nil), FindProgram: findInImage})
		if got.DashboardOnly != want {
			t.Errorf("%q: DashboardOnly is %t", args, got.DashboardOnly)
		}
		if want && (got.Path == "" || got.Argv[len(got.Argv)-1] == "hermes") {
			t.Errorf("%q runs %+v", args, got)
		}
	}
}

func TestRouteTini(t *testing.T) {
	for _, tt := range []struct {
		args string
		want RunPlan
	}{
		{"", agentPlan()},
		{"-g -- gateway run", RunPlan{Supervise: true, Profile: "default", LegacyGatewayRun: true}},
		{"-g gateway run", RunPlan{Supervise: true, Profile: "default", LegacyGatewayRun: true}},
		{"--", agentPlan()},
		{"-g -s -w -l -h -v --", agentPlan()},
		{"--help --version --kill-process-group --subreaper", agentPlan()},
		{"-p SIGTERM -e 143 -- sleep 1", directPlan("/usr/bin/sleep", "sleep", "1")},
		{"-e 143 sleep 1", directPlan("/usr/bin/sleep", "sleep", "1")},
		{"-vvv --unknown sleep 1", directPlan("/usr/bin/sleep", "sleep", "1")},
		{"-- -p x chat", agentPlan("-p", "x", "chat")},
		{"-- -- chat", agentPlan("--", "chat")},
		{"-p", agentPlan()},
		{"-g -- /init /opt/hermes/docker/main-wrapper.sh chat", agentPlan("chat")},
		{"/init sleep 1", directPlan("/usr/bin/sleep", "sleep", "1")},
		{"-- /opt/hermes/docker/main-wrapper.sh sleep 1", directPlan("/usr/bin/sleep", "sleep", "1")},
		{"sleep -p 1", directPlan("/usr/bin/sleep", "sleep", "-p", "1")},
	} {
		for _, argv0 := range []string{"tini", "/usr/bin/tini"} {
			got := PlanRun(CommandLine{Argv0: argv0, Args: splitWords(tt.args), AgentBinary: agentBinary, Env: envLookup(nil), FindProgram: findInImage})
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s %s: got %+v, want %+v", argv0, tt.args, got, tt.want)
			}
		}
	}
	got := PlanRun(CommandLine{Argv0: "/init", Args: splitWords("-g -- chat"), AgentBinary: agentBinary, Env: envLookup(nil), FindProgram: findInImage})
	if want := agentPlan("-g", "--", "chat"); !reflect.DeepEqual(got, want) {
		t.Errorf("options of tini under the name of init: got %+v", got)
	}
}

func TestRouteSharesNothing(t *testing.T) {
	args := splitWords("sleep 1")
	got := PlanRun(CommandLine{Argv0: "/init", Args: args, AgentBinary: agentBinary, Env: envLookup(nil), FindProgram: findInImage})
	got.Argv[0] = "changed"
	if args[0] != "sleep" {
		t.Error("the route changes the arguments it was made from")
	}
}

func TestBreadcrumb(t *testing.T) {
	text := GatewayRunNotice("coder")
	for _, part := range []string{"s6 supervision", "--no-supervise", "HERMES_GATEWAY_NO_SUPERVISE=1", "auto-restart", "dashboard", "hinit", `"coder"`} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in\n%s", part, text)
		}
	}
	if !strings.HasSuffix(text, "\n") {
		t.Error("no newline at the end")
	}
}

// TestShellWords compares the list of shell words with dash, the image's shell, if this machine has it.
func TestShellWords(t *testing.T) {
	if !slices.IsSorted(shellWords) {
		t.Error("the list is not sorted")
	}
	dash := "/bin/dash"
	if _, err := os.Stat(dash); errors.Is(err, fs.ErrNotExist) {
		t.Skip("no dash")
	}
	accepts := func(word string) bool {
		cmd := exec.Command(dash, "-c", `command -v "$1"`, "sh", word)
		cmd.Env = []string{"PATH=/nonexistent"}
		return cmd.Run() == nil
	}
	for _, word := range shellWords {
		if !accepts(word) {
			t.Errorf("dash does not know %q", word)
		}
	}
	for _, word := range splitWords("chat gateway dashboard setup dump function [[ ]] time select let source declare history") {
		if accepts(word) != slices.Contains(shellWords, word) {
			t.Errorf("dash and the list disagree on %q", word)
		}
	}
}

func TestShellRoute(t *testing.T) {
	look := CommandFinder("/nonexistent", "/")
	if _, ok := look("/bin/sh"); !ok {
		t.Skip("no /bin/sh")
	}
	for args, want := range map[string]int{"exit 3": 3, "false": 1, "true": 0, "cd /": 0, "if x": 127} {
		r := PlanRun(CommandLine{Argv0: "/init", Args: splitWords(args), AgentBinary: agentBinary, Env: envLookup(nil), FindProgram: look})
		cmd := exec.Cmd{Path: r.Path, Args: r.Argv}
		err := cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit code %d (%v), want %d", args, got, err, want)
		}
	}
}

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/tool": 0o755, "b/tool": 0o755, "b/data": 0o644, "b/data2": 0o644, "a/other": 0o755, "c/data": 0o755} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "a/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	look := CommandFinder(dir+"/a:"+dir+"/none::b:c", dir)
	for word, want := range map[string]string{
		"tool":  dir + "/a/tool",
		"data":  dir + "/c/data",
		"data2": "", "sub": "", "none": "", "": "", ".": "", "..": "",
		// A word with a slash is a path, so the search skips the directories of PATH.
		"a/tool": "a/tool", "./b/data": "./b/data", dir + "/a/sub": dir + "/a/sub",
		"a/none": "", "/none/at/all": "",
	} {
		got, ok := look(word)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %q, %t, want %q", word, got, ok, want)
		}
	}
	if got, ok := CommandFinder("", dir+"/a")("tool"); ok {
		t.Errorf("an empty PATH finds %q", got)
	}
	if got, ok := CommandFinder("/none:", dir+"/a")("tool"); !ok || got != dir+"/a/tool" {
		t.Errorf("an empty element of PATH is the working directory: got %q, %t", got, ok)
	}
}

// The container's "sh" must be found even when the directories of PATH answer only after seconds. Otherwise hinit would pass
// "sh" to the agent as a subcommand.
func TestASlowDiskHidesNoCommand(t *testing.T) {
	free := make(chan struct{})
	var hung sync.WaitGroup
	for range blocking.TotalTurns() { // more look-ups than turns, so that some must wait
		hung.Go(func() { _ = blocking.Do(blocking.Volume, func() error { <-free; return nil }) })
	}
	defer hung.Wait()
	testkit.Until(t, "all turns of the volume are taken", func() bool { return !blocking.HasFreeTurn(blocking.Volume) })
	time.AfterFunc(ShortTimeout+ShortTimeout/2, func() { close(free) })
	begin := time.Now()
	if got, ok := CommandFinder("/bin", "/")("sh"); !ok || got != "/bin/sh" {
		t.Errorf("got %q, %t", got, ok)
	}
	if took := time.Since(begin); took < ShortTimeout {
		t.Errorf("the directory answered after %v: nothing was slow", took)
	}
}
