// Command comments writes the comments of Go files as Markdown pages, so that the linter of prose reads them sentence by
// sentence. (The linter's own reader of Go sees one line at a time.) Arguments: a directory for the pages, then the files. The
// page of a/b.go is a/b.go.md below that directory, and each line of a comment keeps its number.
package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// directive matches a comment that is an instruction for a tool.
var directive = regexp.MustCompile(`^//(go:|nolint|export |line | \+[a-z])`)

func main() {
	for _, name := range os.Args[2:] {
		if err := write(os.Args[1], name); err != nil {
			fmt.Fprintln(os.Stderr, "comments:", err)
			os.Exit(1)
		}
	}
}

// write writes the page of one file. Generated files have an empty page.
func write(dir, name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	page := filepath.Join(dir, name+".md")
	if err := os.MkdirAll(filepath.Dir(page), 0o755); err != nil {
		return err
	}
	return os.WriteFile(page, []byte(strings.Join(comments(text), "\n")+"\n"), 0o644)
}

// comments returns the lines of the page. A comment after code becomes a list item, because it does not belong to the comment on
// the next line.
func comments(text []byte) []string {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	page := make([]string, file.LineCount()+strings.Count(string(text), "\n")+1)
	if strings.Contains(string(text[:min(len(text), 400)]), "DO NOT EDIT.") {
		return page
	}
	code := 0 // Number of the last line with code.
	for {
		pos, tok, lit := s.Scan()
		line := file.Line(pos)
		switch {
		case tok == token.EOF:
			return page
		case tok != token.COMMENT:
			if lit != "\n" { // The token is not a semicolon that the scanner has inserted.
				code = line
			}
		case directive.MatchString(lit):
		default:
			item := ""
			if code == line {
				item = "- "
			}
			lit = strings.TrimSuffix(strings.TrimPrefix(lit, "/*"), "*/")
			for i, l := range strings.Split(lit, "\n") {
				page[line+i-1] = item + strings.TrimPrefix(strings.TrimPrefix(l, "//"), " ")
			}
		}
	}
}
