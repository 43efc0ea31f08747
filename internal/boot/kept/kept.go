// Package kept defines the format of the image's files for an empty data directory. Package keep writes them in the build of the
// image, and the boot reads them. Since both use this package, they agree on the format. It starts no goroutine.
package kept

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

const (
	// Index is the suffix of a second file next to the seed, which has the names of the seed's files.
	Index = ".json"
	// MaxRecord limits the size of the record of the steps in the data directory.
	MaxRecord = 1 << 20
	// Format is part of every comparison: a hinit with another format runs all steps.
	Format = 3
	// LostAndFound is a directory in every new ext4.
	LostAndFound = "lost+found"
	// APIKey is the name of the key in .env that the boot generates.
	APIKey = "API_SERVER_KEY"
)

// Step has the hashes of a step's inputs at its last success.
type Step struct {
	Program string `json:"program"` // its command, and its inputs outside of the data directory and the agent's installation
	Install string `json:"install"` // its inputs in the installation, or the number of the seal if they are unchanged since the build
	Here    string `json:"here"`    // the exact part of both on this host
	Env     string `json:"env"`
	Volume  string `json:"volume"` // its inputs beneath the data directory, after it ran
}

// Record is the content of the record of the steps.
type Record struct {
	Format int             `json:"format"`
	Steps  map[string]Step `json:"steps"`
}

// Home is the content of the second file next to the seed.
type Home struct {
	Record
	Files []File `json:"files"` // a directory comes before its files
}

// Read reads the second file next to a seed.
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
