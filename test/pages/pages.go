// Package pages helps to test the commands in the documentation. It finds the blocks of a page, the commands in them and
// their documented output, and compares that with the real output. It starts no goroutine.
package pages

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Unchecked is a line before a block whose commands are run, but whose output is not compared. The output is only an example,
// because it depends on the moment or on the machine.
const Unchecked = "<!-- what it prints depends on the moment -->"

// Block is a fenced block of a page.
type Block struct {
	Line    int    // Number of its first line in the page.
	Lang    string // Language after the fence.
	Text    string
	Checked bool // False for a block after the line [Unchecked].
}

// Read returns the blocks of a page.
func Read(path string) ([]Block, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var blocks []Block
	var open *Block
	before := ""
	for i, line := range strings.Split(string(text), "\n") {
		switch lang, fence := strings.CutPrefix(line, "```"); {
		case fence && open == nil:
			open = &Block{Line: i + 2, Lang: lang, Checked: before != Unchecked}
		case fence:
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.Text += line + "\n"
		}
		if strings.TrimSpace(line) != "" {
			before = line
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the block does not end", path, open.Line)
	}
	return blocks, nil
}

// FirstWith returns the text of the first block in the language lang that contains the text has.
func FirstWith(blocks []Block, lang, has string) (string, error) {
	for _, b := range blocks {
		if b.Lang == lang && strings.Contains(b.Text, has) {
			return b.Text, nil
		}
	}
	return "", fmt.Errorf("the page has no %q block with %q", lang, has)
}

// A Step is one command of a page, with the output that the page shows for it.
type Step struct {
	Line    int
	Command string
	Want    string
	Checked bool
}

// Steps returns the commands of all sessions of a page: blocks whose first line begins with "$ ".
func Steps(blocks []Block) []Step {
	var steps []Step
	for _, b := range blocks {
		if !strings.HasPrefix(b.Text, "$ ") {
			continue
		}
		for i, line := range strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n") {
			if command, is := strings.CutPrefix(line, "$ "); is {
				steps = append(steps, Step{Line: b.Line + i, Command: command, Checked: b.Checked})
				continue
			}
			steps[len(steps)-1].Want += line + "\n"
		}
	}
	return steps
}

// Compare compares the output want on a page with the real output got. Numbers, times, versions and the widths of columns may
// differ. The order of lines does not count, because the two output streams have no common order. The line about memory and
// the id that "docker run -d" prints may be missing. A line "..." stands for any lines, and "..." in a line for any text.
func Compare(want, got string) error {
	left := lines(got)
	open := false
	for _, line := range lines(want) {
		if line == "..." || line == "…" {
			open = true
			continue
		}
		pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, ".*") + "$")
		i := slices.IndexFunc(left, pattern.MatchString)
		if i < 0 {
			return fmt.Errorf("nothing like this was printed: %s", line)
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(left) > 0 && !open {
		return fmt.Errorf("the page does not have: %s", left[0])
	}
	return nil
}

// memoryLinePrefix begins a status line that depends on the moment.
const memoryLinePrefix = "when memory runs out the kernel takes first:"

// containerID stands for a container ID, which differs in each run.
const containerID = "ID"

var variableParts = []struct {
	what *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`^[0-9a-f]{64}$`), containerID},
	{regexp.MustCompile(`\banother hinit, by its note [0-9a-f]{12} since\b`), "another hinit, HOST since"},
	{regexp.MustCompile(`devel( \([^)]*\))? go1[.0-9a-z]*`), "VERSION"},
	{regexp.MustCompile(`v?[0-9]+\.[0-9]+\.[0-9]+[-+.0-9a-z]* go1[.0-9a-z]*`), "VERSION"},
	{regexp.MustCompile(`\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b`), "MONTH"},
	{regexp.MustCompile(`[0-9]+(\.[0-9]+)?`), "#"},
	{regexp.MustCompile(`\b?(#(ms|µs|s|m|h)\b)+`), "#s"},
	{regexp.MustCompile(`(#s)+`), "#s"},
	{regexp.MustCompile(`─+`), "─"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \r\n")
		for _, v := range variableParts {
			line = v.what.ReplaceAllString(line, v.to)
		}
		if line = strings.TrimSpace(line); line != "" && line != containerID && !strings.HasPrefix(line, memoryLinePrefix) {
			out = append(out, line)
		}
	}
	return out
}

var pid = regexp.MustCompile(`\bpid ([0-9]+)`)

// PairPIDs adds to known the real process id for each one on the page. It pairs the ids by their order in the output.
func PairPIDs(want, got string, known map[string]string) {
	w, g := pid.FindAllStringSubmatch(want, -1), pid.FindAllStringSubmatch(got, -1)
	for i := range min(len(w), len(g)) {
		known[w[i][1]] = g[i][1]
	}
}
