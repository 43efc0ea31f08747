package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// unreadable finds the first byte that a YAML file can't have, and says what is wrong with it; "" when there is none. The library
// knows neither the line nor the column of such a byte. A file that begins as one of UTF-16 is left to the library.
func unreadable(data []byte) (line int, what string) {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return 0, ""
	}
	line, column := 1, 1
	for rest := data; len(rest) > 0; column++ {
		r, n := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && n == 1:
			return line, fmt.Sprintf("the byte 0x%02x in column %d is no UTF-8; save the file as UTF-8", rest[0], column)
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85:
			return line, fmt.Sprintf("the character %U in column %d is a control character, which YAML doesn't allow", r, column)
		}
		rest = rest[n:]
	}
	return 0, ""
}

// mostLines and mostBytes are how large a file may be whose mistake is looked for line by line: that parses it once for each line.
const (
	mostLines = 500
	mostBytes = 64 << 10
)

// brokenLine returns the line from which on a text can't be parsed however it goes on: the one after the longest beginning that
// is YAML by itself. The library reports the beginning of the mapping for some mistakes. 0 means that the text is too long for that.
func brokenLine(data []byte) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines) > mostLines || len(data) > mostBytes {
		return 0
	}
	end := len(data)
	for n := len(lines); n > 0; n-- {
		end -= len(lines[n-1])
		if parses(data[:end]) {
			return n
		}
	}
	return 1
}

func parses(data []byte) bool {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}
