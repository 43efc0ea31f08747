package applet

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/s6/formats"
)

// tool is one of the tools, with the options and words that it accepts.
type tool struct {
	plain  string // letters of the options without a value
	valued string // letters of the options with a value
	words  int    // minimum number of words after the options
	usage  string
	run    func(c *Call, options []option) int
}

var tools = map[string]tool{
	"s6-envdir":      {"IinfL", "c", 2, "[ -I | -i ] [ -n ] [ -f ] [ -L ] [ -c nullchar ] dir prog...", envdir},
	"s6-log":         {"qvbp", "dl", 1, "[ -d notif ] [ -q | -v ] [ -b ] [ -p ] [ -l linelimit ] [ -- ] logging_script", logMain},
	"s6-setuidgid":   {"", "", 2, "username prog...", setuidgid},
	"s6-svc":         {formats.Letters, "wTs", 1, "[ -wu | -wU | -wd | -wD | -wr | -wR ] [ -T timeout ] [ -s signal | -abqhkti12pcyrlPCK ] [ -oduDUxOQ ] servicedir...", svc},
	"s6-svdt":        {"Ss", "n", 1, "[ -S | -s ] [ -n maxentries ] servicedir", svdt},
	"s6-svok":        {"", "", 1, "servicedir", svok},
	"s6-svscanctl":   {"zabhitqnN", "", 1, "[ -zabhitqnN ] svscandir", svscanctl},
	"s6-svstat":      {"uwNrpgestn", "o", 1, "[ -uwNrpgest | -o up,wantedup,normallyup,ready,paused,pid,pgid,exitcode,signal,signum,updownsince,readysince,updownfor,readyfor ] [ -n ] servicedir", svstat},
	"s6-svwait":      {"UudDrRao", "t", 0, "[ -U | -u | -d | -D | -r | -R ] [ -a | -o ] [ -t timeout ] servicedir...", svwait},
	"s6-tai64nlocal": {"g", "", 0, "[ -g ]", tai64nlocal},
	"with-contenv":   {"", "", 1, "prog...", withContenv},
}

// Find returns the tool whose name is the last component of argv0. run returns the exit code, or replaces the process.
func Find(argv0 string) (name string, run func(*Call) int, ok bool) {
	name = filepath.Base(argv0)
	t, ok := tools[name]
	return name, t.main, ok
}

// Names returns the names of all tools, under which the program must be installed.
func Names() []string { return slices.Sorted(maps.Keys(tools)) }

// wrongUsage is the result of a tool if the value of an option is invalid.
const wrongUsage = -1

func (t tool) main(c *Call) int {
	code, name := wrongUsage, c.Name
	options, words, ok := t.split(c.Args)
	if ok && len(words) >= t.words {
		c.Args = words
		code = t.run(c, options)
	}
	if code == wrongUsage {
		return c.die(exitUsage, "usage: "+name+" "+t.usage)
	}
	return code
}

// option is one option of a tool, with its value if it has one.
type option struct {
	letter byte
	value  string
}

// split parses the options as the tools of s6 do. Several letters can be joined after one "-". A value can be joined to its
// letter, or be the next word. The options end at "--" or at the first word that is not an option. The result is false if a
// letter is unknown or a value is missing.
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
			case strings.IndexByte(t.plain, o.letter) >= 0:
			case strings.IndexByte(t.valued, o.letter) < 0, word == "" && len(words) == 0:
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
