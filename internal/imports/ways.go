package imports

import "strings"

// ways tells what does the work of a setting that hinit has not, by the other supervisor's name of it.
var ways = map[string]string{
	"env_cmds":               "hinit runs no commands for variables; write $(COMMAND) where the shell of a command uses one, or a file for env_file at boot",
	"extends":                "the other file is not read; import it too, and put both below services",
	"watch":                  "hinit watches no sources; hinit restart NAME is what a watcher can call",
	"mcp":                    "hinit runs it as a service and offers no tools; leave it out, or let the tool call hinit run-once",
	"mcp_server":             "hinit offers no tools; its own interface is the control socket",
	"is_elevated":            "hinit uses no sudo; run hinit as root, and say user where a service is not to be root",
	"disable_ansi_colors":    "hinit passes on the output as it is; most programs know NO_COLOR in env",
	"launch_timeout_seconds": "a service stays in the foreground under hinit; how long a start may take is checks of kind startup",
	"isDaemon":               "process-compose knows is_daemon; a service stays in the foreground under hinit",
	"exit_on_skipped":        "a service that waits for another one in vain stays waiting; hinit status says for what",
	"log_configuration":      "hinit has the keys of logs for size, number, age and compression, and logs.console for the format",
	"unix_socket_path":       "hinit has a control socket of its own, control.socket",
	"ordered_shutdown":       "hinit stops in the reverse order of needs always",
	"pairing":                "hinit has no remote access to pair for; its interface is the control socket",
	"image":                  "is left out; the program has to be in the image that hinit is in",
	"build":                  "is left out; the program has to be in the image that hinit is in",
	"ports":                  "is for the engine; give it to the container that hinit is in",
	"volumes":                "is for the engine; give it to the container that hinit is in",
	"networks":               "is for the engine; give it to the container that hinit is in",
	"disable_dotenv":         "env_file names the files that a service reads",
}

// otherWay tells what to do instead of a setting.
func otherWay(name string) string {
	if way, known := ways[name]; known {
		return way
	}
	return "hinit has nothing like this setting; hinit config schema lists what it has"
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
