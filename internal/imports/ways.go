package imports

import "strings"

// ways are notes on settings that hinit does not have, with another way to the same goal. The names are the other supervisor's.
var ways = rules{
	{name: "env_cmds", why: "hinit runs no commands for variables; write $(COMMAND) where the shell of a command uses one, or a file for env_file at boot"},
	{name: "extends", why: "the other file is not read; import it too, and put both below services"},
	{name: "watch", why: "hinit watches no sources; hinit restart NAME is what a watcher can call"},
	{name: "mcp", why: "hinit runs it as a service and offers no tools; leave it out, or let the tool call hinit run-once"},
	{name: "mcp_server", why: "hinit offers no tools; its own interface is the control socket"},
	{name: "is_elevated", why: "hinit uses no sudo; run hinit as root, and say user where a service is not to be root"},
	{name: "disable_ansi_colors", why: "hinit passes on the output as it is; most programs know NO_COLOR in env"},
	{name: "launch_timeout_seconds", why: "a service stays in the foreground under hinit; how long a start may take is checks of kind startup"},
	{name: "isDaemon", why: "process-compose knows is_daemon; a service stays in the foreground under hinit"},
	{name: "exit_on_skipped", why: "a service that waits for another one in vain stays waiting; hinit status says for what"},
	{name: "log_configuration", why: "hinit has the keys of logs for size, number, age and compression, and logs.console for the format"},
	{name: "unix_socket_path", why: "hinit has a control socket of its own, control.socket"},
	{name: "ordered_shutdown", why: "hinit stops in the reverse order of needs always"},
	{name: "pairing", why: "hinit has no remote access to pair for; its interface is the control socket"},
	{name: "image|build", why: "left out; the program has to be in the image that hinit is in"},
	{name: "ports|volumes|networks", why: "is for the engine; give it to the container that hinit is in"},
	{name: "disable_dotenv", why: "env_file names the files that a service reads"},
}

// oneLine shortens a text to a part of its first line.
func oneLine(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	if r := []rune(line); len(r) > 80 {
		line, more = string(r[:80]), true
	}
	if more {
		line += "…"
	}
	return line
}
