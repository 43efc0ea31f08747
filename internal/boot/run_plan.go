package boot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/config"
)

// CommandLine is the command line of hinit, with the facts about the container that [PlanRun] needs. Only Subcommands may be
// empty.
type CommandLine struct {
	Argv0       string   // argv[0] of the init; under the name "tini" it accepts the options of tini
	Args        []string // the container's CMD: the words after the init's own words
	AgentBinary string   // the agent's program (agent.binary)
	// Subcommands are the agent's subcommands. Such a word means the agent, even if there is a program of that name.
	Subcommands []string
	Env         func(name string) (string, bool) // environment of the container
	FindProgram func(word string) (string, bool) // returns the path of the program that a word names, see [CommandFinder]
}

// RunPlan is the meaning of the container's command for hinit.
type RunPlan struct {
	// Supervise means that hinit runs no command, but supervises the gateway of Profile until the container is stopped. Print
	// [GatewayRunNotice] on stderr.
	Supervise bool

	// Path and Argv are the container's command, with argv[0]. Both are empty if Supervise is set.
	Path string
	Argv []string

	// ForegroundGateway means that the command is the gateway of Profile. Do not start a second gateway for this profile.
	ForegroundGateway bool `reexec:"Foreground"`

	// Profile is the profile for Supervise or ForegroundGateway; otherwise "". ProfileIsExplicit says whether the command line
	// names the profile. If not, Profile is "default", and the caller takes the agent's active profile instead. A named profile
	// need not exist.
	Profile           string
	ProfileIsExplicit bool `reexec:"ProfileNamed"`

	// IgnoredWords lists words after "gateway run" without an effect on a supervised gateway.
	IgnoredWords []string `reexec:"Ignored"`

	// DashboardOnly means that the container runs only the dashboard. It has no gateways and writes no boot log, because another
	// container uses the same home (contract, section 3.2).
	DashboardOnly bool

	// ServicesOnly means that hinit supervises only the services of its configuration, without a command, agent, profile or
	// data volume. PlanRun never sets it.
	ServicesOnly bool `reexec:"Plain"`

	// LegacyGatewayRun means that the default gateway counts as running if its home has no gateway_state.json (contract,
	// section 5, legacy migration).
	LegacyGatewayRun bool
}

// HasCommand reports whether hinit runs a command.
func (r RunPlan) HasCommand() bool { return !r.Supervise && !r.ServicesOnly }

// HasProfiles reports whether this container has gateways.
func (r RunPlan) HasProfiles() bool { return !r.DashboardOnly && !r.ServicesOnly }

// PlanRun finds out what a container's command means (contract, sections 3 to 3.2). It looks for files only through
// c.FindProgram.
//
// First it removes the words of the image's entrypoint. These are the options of tini if hinit was started under that name, a
// leading "--", "/init", and a word that ends in /main-wrapper.sh. The remaining words decide:
//
//   - no words: the agent without arguments;
//   - "gateway" and "gateway run", with or without the agent's name before it and -p NAME anywhere: a gateway to supervise,
//     or one in the foreground with --no-supervise, HERMES_GATEWAY_NO_SUPERVISE or HERMES_S6_SUPERVISED_CHILD;
//   - a first word that is a subcommand of the agent: arguments of the agent;
//   - a first word that a shell would find as a command: that command;
//   - anything else: arguments of the agent.
//
// A shell also finds its builtins and keywords, so PlanRun runs these with /bin/sh, for example "cd /tmp" or "exit 3". A
// keyword ends with status 127, as in the image's script. Without a /bin/sh such a word goes to the agent.
func PlanRun(c CommandLine) RunPlan {
	words := removeEntrypointWords(c)
	agentArgs, program, argv := c.resolveProgram(words)

	r := RunPlan{Path: program, Argv: argv, DashboardOnly: dashboardOnly(words, c.AgentBinary)}
	if agentArgs == nil {
		return r
	}
	profile, named, rest, ok := splitProfile(agentArgs)
	if !ok || !isGatewayRun(rest) {
		return r
	}
	r.Profile, r.ProfileIsExplicit = profile, named
	optOut := slices.Contains(rest, "--no-supervise") || config.IsTruthy(EnvOf(c.Env, "HERMES_GATEWAY_NO_SUPERVISE"))
	if optOut || EnvOf(c.Env, "HERMES_S6_SUPERVISED_CHILD") != "" {
		r.ForegroundGateway = true
		return r
	}
	r.Supervise, r.Path, r.Argv = true, "", nil
	r.LegacyGatewayRun = !named && len(rest) > 1 // the state of the default profile does not matter for a named profile
	for _, word := range rest[min(2, len(rest)):] {
		if word != "--replace" { // a supervised gateway always replaces its predecessor
			r.IgnoredWords = append(r.IgnoredWords, word)
		}
	}
	return r
}

// resolveProgram returns the path and the argv of the program that words mean. If the program is the agent, agentArgs are its
// arguments, otherwise nil.
func (c CommandLine) resolveProgram(words []string) (agentArgs []string, path string, argv []string) {
	agent := func(args []string) ([]string, string, []string) {
		return slices.Concat([]string{}, args), c.AgentBinary, slices.Concat([]string{c.AgentBinary}, args)
	}
	if len(words) == 0 {
		return agent(nil)
	}
	first := words[0]
	if slices.Contains(c.Subcommands, first) {
		return agent(words)
	}
	isAgent := isAgentWord(first, c.AgentBinary)
	if found, ok := c.FindProgram(first); ok {
		if isAgent {
			agentArgs = slices.Concat([]string{}, words[1:])
		}
		return agentArgs, found, slices.Clone(words)
	}
	if isAgent && !strings.Contains(first, "/") {
		return agent(words[1:])
	}
	if slices.Contains(shellWords, first) {
		if sh, ok := c.FindProgram("/bin/sh"); ok {
			return nil, sh, slices.Concat([]string{"sh", "-c", `"$@"`, "sh"}, words)
		}
	}
	return agent(words)
}

// shellWords are the builtins and keywords that "command -v" finds in dash, the shell of the image.
var shellWords = []string{
	"!", ".", ":", "[", "alias", "bg", "break", "case", "cd", "chdir", "command", "continue", "do", "done", "echo", "elif",
	"else", "esac", "eval", "exec", "exit", "export", "false", "fg", "fi", "for", "getopts", "hash", "if", "in", "jobs",
	"kill", "local", "printf", "pwd", "read", "readonly", "return", "set", "shift", "test", "then", "times", "trap", "true",
	"type", "ulimit", "umask", "unalias", "unset", "until", "wait", "while", "{", "}",
}

func isAgentWord(word, agent string) bool {
	base := filepath.Base(word)
	return base == "hermes" || agent != "" && base == filepath.Base(agent)
}

// dashboardOnly reports whether the command is the agent's dashboard. Like the agent, it examines only the words, not files.
func dashboardOnly(words []string, agent string) bool {
	if len(words) > 0 && isAgentWord(words[0], agent) {
		words = words[1:]
	}
	return len(words) > 0 && words[0] == "dashboard"
}

// isGatewayRun reports whether args, the agent's arguments without the profile, run a gateway. A request for help does not.
func isGatewayRun(args []string) bool {
	return len(args) > 0 && args[0] == "gateway" &&
		(len(args) == 1 || args[1] == "run" && !slices.Contains(args, "-h") && !slices.Contains(args, "--help"))
}

// splitProfile removes the first -p NAME, --profile NAME or --profile=NAME from the agent's arguments. Without such an option,
// the profile is the root profile. An invalid name is no option; the agent reports that error.
func splitProfile(args []string) (profile string, named bool, rest []string, ok bool) {
	for i, arg := range args {
		name, joined := strings.CutPrefix(arg, "--profile=")
		end := i + 1
		switch {
		case arg == "--":
			return rootProfile, false, args, true
		case joined:
		case arg != "-p" && arg != "--profile":
			continue
		case end == len(args):
			return "", false, args, false
		default:
			name, end = args[end], end+1
		}
		name = strings.ToLower(strings.TrimSpace(name))
		return name, true, slices.Concat(args[:i], args[end:]), config.IsValidName(name)
	}
	return rootProfile, false, args, true
}

// EnvOf returns the value of a variable; "" if it is not set.
func EnvOf(env func(string) (string, bool), name string) string {
	v, _ := env(name)
	return v
}

// removeEntrypointWords removes the words of the image's entrypoint, see PlanRun.
func removeEntrypointWords(c CommandLine) []string {
	words := c.Args
	if filepath.Base(c.Argv0) == "tini" {
		words = removeTiniOptions(words)
	} else if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	for i, mine := range []string{"/init", "/main-wrapper.sh", "/entrypoint-dispatch.sh"} {
		if len(words) > 0 && (words[0] == mine || i > 0 && strings.HasSuffix(words[0], mine)) {
			words = words[1:]
		}
	}
	return words
}

// removeTiniOptions removes the options of tini, up to "--" or the first other word. -p and -e have a value.
func removeTiniOptions(words []string) []string {
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		option := words[0]
		words = words[1:]
		switch {
		case option == "--":
			return words
		case (option == "-p" || option == "-e") && len(words) > 0:
			words = words[1:]
		}
	}
	return words
}

// GatewayRunNotice returns the text for stderr when hinit supervises a gateway instead of running the command "gateway run". It
// says what the user gains, and how to run the command in the foreground. It ends with a newline.
func GatewayRunNotice(profile string) string {
	return "[hinit] `gateway run` as the container's command: the gateway of profile \"" + profile + `" runs under hinit, ` +
		`which provides s6 supervision here
[hinit]   auto-restart when it exits, logs in files, and the dashboard beside it with HERMES_DASHBOARD=1
[hinit]   to run it in the foreground instead, its exit ending the container, add --no-supervise ` +
		`or set HERMES_GATEWAY_NO_SUPERVISE=1
`
}

// CommandFinder returns a function that finds a program by PATH and working directory, as a shell's "command -v" does. A word
// with a slash only needs an existing file; running it shows any other error. Another word must name an executable file in a
// directory of path.
//
// A directory that does not answer, such as a hung data volume early in the PATH, does not hide programs in later directories.
// Before a word counts as unknown, CommandFinder tries the silent directories again with more patience. So a slow disk does not
// turn the container's command into arguments of the agent.
func CommandFinder(path, dir string) func(word string) (string, bool) {
	inDir := func(name string) string {
		if filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(dir, name)
	}
	return func(word string) (string, bool) {
		if strings.Contains(word, "/") {
			_, err := StatWithin(blocking.Volume, longTimeout, inDir(word))
			return word, err == nil
		}
		if word == "" || word == "." || word == ".." {
			return "", false
		}
		places := filepath.SplitList(path)
		for _, patience := range []time.Duration{ShortTimeout, longTimeout} {
			var slow []string
			for _, where := range places {
				file := filepath.Join(inDir(where), word)
				info, err := StatWithin(blocking.Volume, patience, file)
				if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
					return file, true
				}
				if errors.Is(err, blocking.ErrTimedOut) || errors.Is(err, blocking.ErrBusy) {
					slow = append(slow, where)
				}
			}
			places = slow
		}
		return "", false
	}
}

// Time limits of CommandFinder for one directory: ShortTimeout at first, longTimeout in the second attempt. Callers that
// can do without an answer use ShortTimeout too.
const (
	ShortTimeout = 2 * time.Second
	longTimeout  = 8 * time.Second
)

// StatWithin is os.Stat with a time limit. It takes a turn of package blocking from share, so that only a few such calls can
// hang.
func StatWithin(share blocking.Pool, patience time.Duration, path string) (fs.FileInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var info fs.FileInfo
	if err := blocking.Within(ctx, share, "looking for "+path, func() (err error) {
		info, err = os.Stat(path)
		return err
	}); err != nil {
		return nil, err
	}
	return info, nil
}
