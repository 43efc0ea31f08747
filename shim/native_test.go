package shim

import (
	"os"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// nativeScript is a hinit that prints its arguments.
const nativeScript = "#!/bin/sh\necho \"native $(id -u) $HOME $*\"\n"

// newNativeImage makes an image whose init answers the s6 tools.
func newNativeImage(t *testing.T) *image {
	t.Helper()
	i := newImage(t, `echo "agent $(id -u) $HOME $*"`)
	write(t, i.hinitPath, nativeScript, 0o755)
	must(t, os.MkdirAll(i.s6BaseDir, 0o755))
	return i
}

func TestLifecycleCommandsGoToHinitAsTheAgentsUser(t *testing.T) {
	testkit.NeedRoot(t)
	i := newNativeImage(t)
	for _, words := range []string{"gateway status", "-p coder gateway start", "gateway stop --all", "gateway restart --profile=coder"} {
		runCommand(t, i.command(strings.Fields(words)...)).want(t, 0, "native 10000 /opt/data "+i.target+" "+words+"\n", "")
	}
	runCommand(t, asUser(i.command("gateway", "status"), 12345)).want(t, 0, "native 12345 /root "+i.target+" gateway status\n", "")
	kept := i.command("gateway", "status")
	kept.Env = append(kept.Env, "HERMES_DOCKER_EXEC_AS_ROOT=1")
	runCommand(t, kept).want(t, 0, "native 0 /root "+i.target+" gateway status\n", "")
}

func TestEverythingElseGoesToTheAgentUntouched(t *testing.T) {
	testkit.NeedRoot(t)
	i := newNativeImage(t)
	for _, words := range []string{
		"", "status", "gateway", "gateway run", "gateway install", "gateway start --all", "gateway status --deep", "gateway start -v",
		"gateway status extra", "chat -q gateway status", "-p a -p b gateway start", "gateway stop --all --all", "gateway --all stop",
		"-p", "gateway start -p", "--profile= gateway start", "gateway start --system", "-pcoder gateway start", "gateway start --",
	} {
		runCommand(t, i.command(strings.Fields(words)...)).want(t, 0, "agent 10000 /opt/data "+words+"\n", "")
	}
	runCommand(t, i.command("-p", "", "gateway", "start")).want(t, 0, "agent 10000 /opt/data -p  gateway start\n", "")
}

func TestTheAgentAnswersWhereHinitDoesNot(t *testing.T) {
	testkit.NeedRoot(t)
	const byAgent = "agent 10000 /opt/data gateway status\n"
	for name, spoil := range map[string]func(*testing.T, *image){
		"no hinit":        func(t *testing.T, i *image) { must(t, os.Remove(i.hinitPath)) },
		"not executable":  func(t *testing.T, i *image) { must(t, os.Chmod(i.hinitPath, 0o644)) },
		"another machine": func(t *testing.T, i *image) { write(t, i.hinitPath, "\x7fELF nonsense", 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			i := newNativeImage(t)
			spoil(t, i)
			runCommand(t, i.command("gateway", "status")).want(t, 0, byAgent, "")
		})
	}
	t.Run("turned off", func(t *testing.T) {
		cmd := newNativeImage(t).command("gateway", "status")
		cmd.Env = append(cmd.Env, "HINIT_SHIM_NATIVE=0")
		runCommand(t, cmd).want(t, 0, byAgent, "")
	})
	t.Run("another agent", func(t *testing.T) {
		i, other := newNativeImage(t), newImage(t, `echo "other $*"`)
		write(t, i.config, other.target+"\n", 0o644)
		runCommand(t, i.command("gateway", "status")).want(t, 0, "other gateway status\n", "")
	})
}

func TestWithoutS6TheAgentIsNotAskedToStartOrStopAnything(t *testing.T) {
	testkit.NeedRoot(t)
	i := newNativeImage(t)
	must(t, os.Remove(i.s6BaseDir))
	for _, words := range []string{"gateway status", "gateway start", "gateway start --all", "-p coder gateway restart -v", "gateway --all stop", "-p=x gateway start"} {
		runCommand(t, i.command(strings.Fields(words)...)).want(t, 0, "native 10000 /opt/data "+i.target+" "+words+"\n", "")
	}
	for _, words := range []string{"gateway run", "gateway status --deep", "gateway start --help", "gateway restart -h", "chat -q gateway start", "-p gateway start", "gateway", "gateway list"} {
		runCommand(t, i.command(strings.Fields(words)...)).want(t, 0, "agent 10000 /opt/data "+words+"\n", "")
	}
}
