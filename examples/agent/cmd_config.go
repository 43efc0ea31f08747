package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"hinit/examples/agent/internal/record"
)

const configUsage = "config set KEY VALUE | config get KEY"

func cmdConfig(c *call) int {
	path := filepath.Join(c.home.Dir, "config.yaml")
	var err error
	switch {
	case len(c.args) == 3 && c.args[0] == "set":
		err = configSet(path, c.args[1], c.args[2])
	case len(c.args) == 2 && c.args[0] == "get":
		var value string
		if value, err = configGet(path, c.args[1]); err == nil {
			fmt.Fprintln(c.stdout, value)
		}
	default:
		return c.fail(exitUsage, errors.New("usage: "+configUsage))
	}
	if err != nil {
		return c.fail(exitFailed, err)
	}
	return exitOK
}

// configSet writes the line "key: value" into the file, in place of the key's old line if the file has one. A new file gets
// mode 0640, as in the Hermes agent. Only keys at the top level are supported.
func configSet(path, key, value string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`).MatchString(key) {
		return fmt.Errorf("cannot set '%s': a key has only letters, digits, '_', '.' and '-'", key)
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot set '%s': %w", key, err)
	}
	var lines []string
	if len(data) > 0 {
		lines = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	}
	line, found := key+": "+quoteYAML(value), false
	for i := range lines {
		if strings.HasPrefix(lines[i], key+":") {
			lines[i], found = line, true
		}
	}
	if !found {
		lines = append(lines, line)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot set '%s': %w", key, err)
	}
	return record.ReplaceFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o640, ".config_*.tmp")
}

func configGet(path, key string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cannot get '%s': %w", key, err)
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, key+":"); found {
			return unquoteYAML(strings.TrimSpace(value)), nil
		}
	}
	return "", fmt.Errorf("'%s' is not set in %s", key, path)
}

// quoteYAML returns a plain word unchanged, and everything else as a JSON string, which is valid YAML.
func quoteYAML(value string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./:@+-]*$`).MatchString(value) && !strings.HasSuffix(value, ":") {
		return value
	}
	quoted, err := json.Marshal(value)
	if err != nil { // A string can always be marshalled.
		return value
	}
	return string(quoted)
}

func unquoteYAML(value string) string {
	var text string
	if json.Unmarshal([]byte(value), &text) == nil {
		return text
	}
	return value
}
