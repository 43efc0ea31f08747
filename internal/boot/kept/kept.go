// Package kept is the format of the image's files for an empty data directory: the boot reads it, and package keep writes it in the build.
//
// It promises that both mean the same files. It starts no goroutine.
package kept

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

const (
	// Index is the end of the name of the file beside the seed that has the names of its files.
	Index = ".json"
	// MaxRecord bounds the record of the steps in the data directory.
	MaxRecord = 1 << 20
	// Format is part of every comparison: a hinit that compares differently runs all steps.
	Format = 3
	// LostAndFound is in every empty ext4.
	LostAndFound = "lost+found"
	// APIKey is the name of that key.
	APIKey = "API_SERVER_KEY"
)

// Step holds the hashes of a step's last success.
type Step struct {
	Program string `json:"program"` // its command, and its inputs outside the data directory and the agent's installation
	Install string `json:"install"` // its inputs in that, or the number of the seal while they are as the image was built
	Here    string `json:"here"`    // what is exact about both on this host
	Env     string `json:"env"`
	Volume  string `json:"volume"` // its inputs beneath the data directory, as they were after it
}

// Record is the content of the record of the steps.
type Record struct {
	Format int             `json:"format"`
	Steps  map[string]Step `json:"steps"`
}

// Home is the record beside the seed.
type Home struct {
	Record
	Files []File `json:"files"` // a directory comes before its files
}

// Read reads the record beside a seed.
func Read(seed string) (h Home, err error) {
	data, err := os.ReadFile(seed + Index)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err == nil && h.Format != Format {
		err = fmt.Errorf("its format is %d, not %d", h.Format, Format)
	}
	return h, err
}

// File is a file or directory of the seed.
type File struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Size int         `json:"size,omitempty"`
}

// WithoutKey returns an .env without the key that the boot generates.
func WithoutKey(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if _, mine := KeyOf(line); !mine {
			b.WriteString(line)
		}
	}
	return []byte(b.String())
}

// KeyOf returns the value of the key in a line of an .env, and whether the line assigns it.
func KeyOf(line string) (value string, mine bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "export "), APIKey)
	if !ok {
		return "", false
	}
	value, ok = strings.CutPrefix(strings.TrimLeft(rest, " "), "=")
	return strings.Trim(value, " \t\r\n\"'"), ok
}
