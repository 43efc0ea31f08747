package promises_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// figures holds the counts and figures of the tests, for the sheet.
type figures struct {
	mu     sync.Mutex
	counts map[string]int64
	worst  map[string]string
}

var sheet = figures{counts: map[string]int64{}, worst: map[string]string{}}

// add increases a count.
func (f *figures) add(what string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[what] += int64(n)
}

func (f *figures) set(what, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.worst[what] = value
}

// promise is a line of the sheet.
type promise struct {
	number    int
	text      string
	tests     []string // Names of tests, in any package.
	attempted string   // What was tried, with {count} for the number.
}

// fill replaces placeholders in a text by figures.
func (f *figures) fill(text string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var pairs []string
	for name, n := range f.counts {
		pairs = append(pairs, "{"+name+"}", grouped(n))
	}
	for name, value := range f.worst {
		pairs = append(pairs, "{"+name+"}", value)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

func grouped(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

const (
	sheetFile  = "../../docs/reference/promises.md"
	tableBegin = "<!-- The table is written by: make promises-write -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

// show prints the sheet, and writes the page of promises.
func (f *figures) show(write bool) error {
	var b strings.Builder
	b.WriteString("| | Promise | Tried, and nothing lost | By |\n|---|---|---|---|\n")
	for _, p := range promises() {
		var by []string
		for _, name := range p.tests {
			by = append(by, "`"+name+"`")
		}
		slices.Sort(by)
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", p.number, p.text, f.fill(p.attempted), strings.Join(by, ", "))
	}
	table := b.String()
	fmt.Print(table)
	if i := strings.IndexByte(table, '{'); i >= 0 {
		return fmt.Errorf("a figure is missing: ...%.40s", table[i:])
	}
	if !write {
		return nil
	}
	file := filepath.FromSlash(sheetFile)
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), tableBegin)
	_, after, closed := strings.Cut(rest, tableEnd)
	if !ok || !closed {
		return fmt.Errorf("cannot find the place of the table in %s", file)
	}
	return os.WriteFile(file, []byte(before+tableBegin+"\n"+table+"\n"+tableEnd+after), 0o644)
}

// TestTheSheetHasEverything checks that each test of this package is on the sheet, and that a test
// provides each figure.
func TestTheSheetHasEverything(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	var named []string
	for _, p := range promises() {
		named = append(named, p.tests...)
		for _, figure := range regexp.MustCompile(`{([^}]+)}`).FindAllStringSubmatch(p.attempted, -1) {
			pattern := regexp.MustCompile(`sheet\.(add|set)\("(` + regexp.QuoteMeta(figure[1]) + `"|cost of each of "\+)`)
			if !pattern.MatchString(source.String()) {
				t.Errorf("line %d: no test tells the figure %q", p.number, figure[1])
			}
		}
	}
	for _, test := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllStringSubmatch(source.String(), -1) {
		if test[1] != "TestNoFaultsInWhatIsShipped" && test[1] != t.Name() && !slices.Contains(named, "test/promises."+test[1]) {
			t.Errorf("%s is on no line of the sheet", test[1])
		}
	}
}
