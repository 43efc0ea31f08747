package applet

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"hinit/internal/proc"
	"hinit/internal/s6/formats"
)

// The exit codes of the tools of s6.
const (
	exitDone        = 0
	exitFalse       = 1 // the answer to the question is no
	exitTimeout     = 99
	exitUsage       = 100
	exitNotAlive    = 102 // s6-svc: the directory is not supervised
	exitSystemError = 111
	exitNoExec      = 126
	exitNotFound    = 127
)

// Invocation is one run of a tool of s6 in this package.
type Invocation struct {
	Name     string
	Args     []string // words after the name; while the tool runs, only the words after its options
	Env      []string
	In       *os.File
	Out, Err io.Writer
	// Dial connects to PID 1.
	Dial func() (Supervisor, error)
	// RootPrefix is a prefix for the paths of files in the image. Only tests set it.
	RootPrefix string
}

func (c *Invocation) fatal(code int, text string) int { return c.printMessage(code, "fatal: "+text) }

func (c *Invocation) warn(text string) { c.printMessage(0, "warning: "+text) }

func (c *Invocation) printMessage(code int, text string) int {
	_, _ = io.WriteString(c.Err, c.Name+": "+text+"\n")
	return code
}

func (c *Invocation) print(line string) int {
	if _, err := io.WriteString(c.Out, line+"\n"); err != nil {
		return c.fatal(exitSystemError, "unable to write to stdout: "+strerror(err))
	}
	return exitDone
}

// strerror returns the reason of an error as C programs print it: with a capital letter and without the path.
func strerror(err error) string {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		if errno == syscall.EBUSY { // Go's text for EBUSY differs from the C library's
			return "Device or resource busy"
		}
		text := errno.Error()
		return strings.ToUpper(text[:1]) + text[1:]
	case errors.Is(err, fs.ErrPermission):
		return "Permission denied"
	case errors.Is(err, fs.ErrNotExist):
		return "No such file or directory"
	}
	return err.Error()
}

const defaultPath = "/usr/bin:/bin"

// exec replaces this process by a program from PATH, as execvp(3) does, but runs no shell for files without a magic number.
// After a failure, it prints a message in the name of the tool toolName, and returns the exit code. Where s6 uses a chain of
// tools, toolName is the last tool of the chain.
func (c *Invocation) exec(toolName string, argv, env []string) int {
	path, err := proc.LookPath(argv[0], []string{"PATH=" + cmp.Or(proc.Getenv(env, "PATH"), defaultPath)})
	if err == nil {
		err = syscall.Exec(path, argv, env)
	}
	c.Name = toolName
	code := exitNoExec
	if errors.Is(err, syscall.ENOENT) {
		code = exitNotFound
	}
	return c.fatal(code, "unable to exec "+argv[0]+": "+strerror(err))
}

// tool describes a tool: its options, its words, and the function that runs it.
type tool struct {
	flags      string // letters of options without a value
	valueFlags string // letters of options with a value
	minWords   int    // minimum number of words after the options
	usage      string
	run        func(c *Invocation, options []option) int
}

var tools = map[string]tool{
	"s6-envdir":      {"IinfL", "c", 2, "[ -I | -i ] [ -n ] [ -f ] [ -L ] [ -c nullchar ] dir prog...", runEnvdir},
	"s6-log":         {"qvbp", "dl", 1, "[ -d notif ] [ -q | -v ] [ -b ] [ -p ] [ -l linelimit ] [ -- ] logging_script", runLog},
	"s6-setuidgid":   {"", "", 2, "username prog...", runSetuidgid},
	"s6-svc":         {formats.SvcLetters, "wTs", 1, "[ -wu | -wU | -wd | -wD | -wr | -wR ] [ -T timeout ] [ -s signal | -abqhkti12pcyrlPCK ] [ -oduDUxOQ ] servicedir...", runSvc},
	"s6-svdt":        {"Ss", "n", 1, "[ -S | -s ] [ -n maxentries ] servicedir", runSvdt},
	"s6-svok":        {"", "", 1, "servicedir", runSvok},
	"s6-svscanctl":   {"zabhitqnN", "", 1, "[ -zabhitqnN ] svscandir", runSvscanctl},
	"s6-svstat":      {"uwNrpgestn", "o", 1, "[ -uwNrpgest | -o up,wantedup,normallyup,ready,paused,pid,pgid,exitcode,signal,signum,updownsince,readysince,updownfor,readyfor ] [ -n ] servicedir", runSvstat},
	"s6-svwait":      {"UudDrRao", "t", 0, "[ -U | -u | -d | -D | -r | -R ] [ -a | -o ] [ -t timeout ] servicedir...", runSvwait},
	"s6-tai64nlocal": {"g", "", 0, "[ -g ]", runTAI64NLocal},
	"with-contenv":   {"", "", 1, "prog...", runWithContenv},
}

// Find returns the tool whose name is the last element of argv0. run returns the exit code, unless the tool replaces the process.
func Find(argv0 string) (name string, run func(*Invocation) int, ok bool) {
	name = filepath.Base(argv0)
	t, ok := tools[name]
	return name, t.main, ok
}

// Names returns the names of all tools. The program must be installed under each name.
func Names() []string { return slices.Sorted(maps.Keys(tools)) }

// wrongUsage is the result of a tool for an invalid value of an option. main then prints the usage.
const wrongUsage = -1

func (t tool) main(c *Invocation) int {
	code, name := wrongUsage, c.Name
	options, words, ok := t.split(c.Args)
	if ok && len(words) >= t.minWords {
		c.Args = words
		code = t.run(c, options)
	}
	if code == wrongUsage {
		return c.printMessage(exitUsage, "usage: "+name+" "+t.usage)
	}
	return code
}

type option struct {
	letter byte
	value  string
}

// split parses options as the programs of s6 do. Several letters may follow one "-". A value is the rest of the word after its
// letter, or else the next word. The options end at "--", or at the first word that is no option. ok is false for an unknown
// letter or a missing value.
func (t tool) split(args []string) (options []option, words []string, ok bool) {
	for words = args; len(words) > 0 && len(words[0]) > 1 && words[0][0] == '-'; {
		word := words[0][1:]
		words = words[1:]
		if word == "-" {
			break
		}
		for word != "" {
			o := option{letter: word[0]}
			word = word[1:]
			switch {
			case strings.IndexByte(t.flags, o.letter) >= 0:
			case strings.IndexByte(t.valueFlags, o.letter) < 0, word == "" && len(words) == 0:
				return nil, nil, false
			case word != "":
				o.value, word = word, ""
			default:
				o.value, words = words[0], words[1:]
			}
			options = append(options, o)
		}
	}
	return options, words, true
}
