package tools

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/version"
	"hinit/internal/wholefile"
)

//go:embed completion.bash completion.zsh completion.fish
var completionScripts embed.FS

// completeFileNames, in place of words, tells the script to complete file names.
const completeFileNames = ":files"

// completionTimeout is how long completion waits for hinit after a key. Without an answer it offers no service names.
const completionTimeout = 300 * time.Millisecond

func completionVerb(table func() []cli.Verb) cli.Verb {
	return cli.Verb{
		Name: "completion", Action: "print the completion script", Summary: "print a script that lets a shell complete commands and live names", Args: "bash|zsh|fish",
		Run: func(t *cli.Terminal, c *cli.Call) int {
			describing := c.Flags.Bool("describe", false, "words: with what each word means, after a tab")
			words, code, ok := c.Parse(t, 1, -1)
			if !ok {
				return code
			}
			if words[0] == "words" {
				typed := strings.Trim(words[len(words)-1], `'"`)
				for _, one := range candidatesFor(t, table(), words[1:]) {
					line := show.EscapeLine(one.word)
					switch {
					case *describing && line != completeFileNames:
						line += "\t" + show.EscapeLine(one.description)
					case line != typed && line != cmdline.ShellQuote(line):
						continue // bash would insert the word without quotes
					}
					fmt.Fprintln(t.RawOutput(), line)
				}
				return cmdline.ExitDone
			}
			if script, err := completionScripts.ReadFile("completion." + words[0]); err == nil && len(words) == 1 {
				_, err := t.RawOutput().Write(script)
				return t.ReportError(c.Action(), err)
			}
			near := cmdline.DidYouMean(words[0], []string{"bash", "zsh", "fish"})
			return t.Fail(cmdline.ExitUsage, "cannot complete for %q: expected: hinit completion bash, zsh or fish%s", words[0], near)
		},
	}
}

// completion is a possible completion of the command line, with its meaning.
type completion struct{ word, description string }

func candidatesFor(t *cli.Terminal, table []cli.Verb, words []string) (found []completion) {
	if len(words) == 0 || words[len(words)-1] == "=" { // bash has split --flag=value into three words
		words = append(words, "")
	}
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "=" })
	for i := len(words) - 1; i >= 0; i-- {
		words[i] = strings.Trim(words[i], `'"`)  // the shell leaves a quote before a pattern
		if words[i] == "@" && i+1 < len(words) { // bash has split @GROUP into two words
			words = slices.Replace(words, i, i+2, "@"+words[i+1])
		}
	}
	typed, before := words[len(words)-1], ""
	offer := func(word, about string) {
		word = before + word
		if strings.HasPrefix(word, typed) && !slices.ContainsFunc(found, func(c completion) bool { return c.word == word }) {
			found = append(found, completion{word, about})
		}
	}
	offerVerbs := func() {
		for _, v := range table {
			offer(v.Name, v.Summary)
		}
	}
	if len(words) == 1 || len(words) == 2 && words[0] == "help" {
		offerVerbs()
		offer("help", "what there is")
		return found
	}
	at := slices.IndexFunc(table, func(v cli.Verb) bool { return v.Name == words[0] })
	if at < 0 {
		return nil
	}
	all := commandsByName()
	d := all[words[0]]
	if sub, is := all[words[0]+" "+words[1]]; is && len(words) > 2 {
		d = sub
	}
	propose := func(c completionWords, several bool, about string) {
		switch {
		case c.TakesFiles:
			found = append(found, completion{word: completeFileNames})
		case c.TakesServices:
			offerServices(t, several, strings.TrimPrefix(typed, before), offer)
		}
		for _, word := range c.Words {
			offer(word, about)
		}
	}
	flag, _, joined := strings.Cut(typed, "=")
	if joined = joined && strings.HasPrefix(flag, "-"); !joined {
		flag = words[len(words)-2]
	}
	if f := d.findFlag(flag); f.Value != "" && (joined || len(words) > 2) {
		if joined {
			before = flag + "="
		}
		propose(f.completionWords, false, f.Usage)
		return found
	}
	if strings.HasPrefix(typed, "-") {
		for _, f := range d.Flags {
			offer(f.Name, f.Usage)
		}
		return found
	}
	isFirst := !slices.ContainsFunc(words[1:len(words)-1], func(word string) bool { return !strings.HasPrefix(word, "-") })
	switch {
	case d.Words != nil && isFirst:
		propose(completionWords{Words: d.Words}, false, "")
	case table[at].TakesVerbNames:
		offerVerbs()
	default:
		propose(completionWords{TakesServices: d.TakesServices, TakesFiles: d.TakesFiles}, table[at].SelectsServices, "")
	}
	return found
}

// offerServices calls offer for each service of hinit. For a verb with several services, it also offers groups and the services
// that a pattern matches. It offers gateway-NAME only after the user has typed a letter, because these names double the list.
func offerServices(t *cli.Terminal, several bool, typed string, offer func(word, about string)) {
	// t.Status alone would wait longer than a completion may.
	st, _ := withDeadline(time.Now().Add(completionTimeout), func() (client.Status, error) { return t.Status() })
	var matched []string
	groups := make(map[string]int)
	for i := range st.Services {
		s := &st.Services[i]
		if s.Profile != "" {
			offer(s.Profile, "")
		}
		if s.Profile == "" || typed != "" {
			offer(s.Name, "")
		}
		if cmdline.SelectsService(typed, s) {
			matched = append(matched, s.Name)
		}
		groups[s.Group]++
	}
	if !several {
		return
	}
	delete(groups, "")
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		offer("@"+name, fmt.Sprintf("%d services", groups[name]))
	}
	if len(matched) > 0 && cmdline.IsSelector(typed) {
		offer(typed, strings.Join(matched, ", "))
	}
}

type completionWords struct {
	Words         []string `json:"words"` // valid words, such as check and schema
	TakesServices bool     `json:"names"` // the command accepts names of services and profiles
	TakesFiles    bool     `json:"files"`
}

// commandHelp describes one command for the completion. internal/gendocs writes the table of all commands, commands.json, from
// their help. Words complete only the first argument. Names and TakesFiles complete the other arguments, or all arguments if
// Words is empty.
type commandHelp struct {
	completionWords

	Flags []commandFlag `json:"flags"`
}

type commandFlag struct {
	completionWords

	Name  string `json:"name"`  // name of the flag, with its dashes
	Value string `json:"value"` // name of the flag's value; "" for none
	Usage string `json:"usage"`
}

//go:embed commands.json
var commandTable []byte

func commandsByName() (all map[string]commandHelp) {
	_ = json.Unmarshal(commandTable, &all) // gendocs has written the table, so it is valid
	return all
}

// findFlag returns the flag with this name, including its dashes. If the command has no such flag, the result is empty.
func (d commandHelp) findFlag(name string) (f commandFlag) {
	for _, f := range d.Flags {
		if strings.HasPrefix(name, "-") && strings.TrimLeft(f.Name, "-") == strings.TrimLeft(name, "-") {
			return f
		}
	}
	return f
}

// manPages has the pages that internal/gendocs writes.
//
//go:embed man
var manPages embed.FS

func manVerb() cli.Verb {
	return cli.Verb{
		Name: "man", Action: "print the manual", Summary: "print a manual page, for man -l - or a directory of man pages", Args: "[VERB] [-o DIR]", TakesVerbNames: true,
		Run: func(t *cli.Terminal, c *cli.Call) int {
			dir := c.Flags.String("o", "", "write all pages into `DIR`")
			words, code, ok := c.Parse(t, 0, 1)
			if !ok {
				return code
			}
			if *dir != "" {
				if len(words) > 0 {
					return t.Fail(cmdline.ExitUsage, "cannot write the manual: -o writes all pages; leave out %q", words[0])
				}
				return writeManualPages(t, *dir)
			}
			page, err := manualPage(strings.Join(append([]string{"hinit"}, words...), "-") + ".1")
			if err == nil {
				_, err = t.RawOutput().Write(page)
				return t.ReportError(c.Action(), err)
			}
			return t.Fail(cmdline.ExitUsage, "cannot print the manual of %q: hinit has no such command%s", words[0], cmdline.DidYouMean(words[0], slices.Collect(maps.Keys(commandsByName()))))
		},
	}
}

// manualPage returns the manual page in the file name, and inserts the version.
func manualPage(name string) ([]byte, error) {
	page, err := manPages.ReadFile("man/" + name)
	return []byte(strings.ReplaceAll(string(page), "@VERSION@", strings.ReplaceAll(version.Get().Version, "-", `\-`))), err
}

// writeManualPages writes all manual pages into a directory.
func writeManualPages(t *cli.Terminal, dir string) int {
	pages, err := manPages.ReadDir("man")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	for _, p := range pages {
		if err == nil {
			page, _ := manualPage(p.Name())
			err = wholefile.Replace(filepath.Join(dir, p.Name()), 0o644, true, bytes.NewReader(page).WriteTo)
		}
	}
	if err != nil {
		return t.ReportError("write the manual", err)
	}
	fmt.Fprintf(t.Out, "%d pages are in %s\n", len(pages), dir)
	return cmdline.ExitDone
}
