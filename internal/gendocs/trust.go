package main

import (
	_ "embed"
	"fmt"
	"strings"
)

// trustText is the table of the readers of hinit's programs. A section is "## TITLE". A row of it has lines "read: ", "by: ",
// "worst: ", "test: DIRECTORY.TEST" and "in: FILE FUNCTION...". Tests hold it to the source.
//
//go:embed trust.txt
var trustText string

// source is something that programs of hinit read, and what comes of believing it.
type source struct {
	section, read, by, worst string

	tests []string // "directory.Test", or "test/script.name" of a scenario
	in    []string // "directory/file.go function"
}

// sources reads trust.txt.
func sources() ([]source, error) {
	var all []source
	section := ""
	for n, line := range strings.Split(trustText, "\n") {
		key, value, _ := strings.Cut(line, ": ")
		if key == "read" {
			all = append(all, source{section: section, read: value})
		}
		if title, is := strings.CutPrefix(line, "## "); is {
			section = title
			continue
		}
		if line == "" || key == "read" {
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("cannot read trust.txt: line %d is before the first row", n+1)
		}
		switch s := &all[len(all)-1]; key {
		case "by":
			s.by = value
		case "worst":
			s.worst = value
		case "test":
			s.tests = append(s.tests, value)
		case "in":
			words := strings.Fields(value)
			for _, function := range words[1:] {
				s.in = append(s.in, words[0]+" "+function)
			}
		default:
			return nil, fmt.Errorf("cannot read trust.txt: line %d is none of read, by, worst, test, in", n+1)
		}
	}
	return all, nil
}

// trustPage is the page of that table.
func trustPage() (string, error) {
	all, err := sources()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# What hinit reads, and who can write it

<!-- Generated from internal/gendocs/trust.txt. Do not edit. -->

Everything that the programs of hinit read, with its writers in parentheses, and the worst effect of its content. *The agent* is every process of
the agent's user.
[trust.txt](../../internal/gendocs/trust.txt) names tests and functions of [each row](../adr/0051-every-reader-has-a-row.md).
`)
	section := ""
	for _, s := range all {
		if s.section != section {
			section = s.section
			fmt.Fprintf(&b, "\n## %s\n\n", section)
		}
		fmt.Fprintf(&b, "- **%s** (%s): %s\n", s.read, s.by, s.worst)
	}
	return b.String(), nil
}
