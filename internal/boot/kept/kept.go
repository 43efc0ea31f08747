// Package kept defines the format in which an image keeps files for an empty data directory (the seed). Package keep writes the
// seed while the image is built, and the boot reads it. The package starts no goroutine.
package kept

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

const (
	// IndexSuffix is the suffix of the second file of a seed, which lists the names and modes of the files in the seed.
	IndexSuffix = ".json"
	// MaxRecord limits the size of the file with the record of the boot steps, in bytes.
	MaxRecord = 1 << 20
	// Format is the version of this format. A hinit with another format does not use the record of the boot steps, and runs all
	// steps.
	Format = 3
	// LostAndFound is a directory that every new ext4 file system has.
	LostAndFound = "lost+found"
	// APIKey is the name of the variable in .env whose value the boot generates.
	APIKey = "API_SERVER_KEY"
)

// Step holds hashes of a step's inputs at its last success. If they have not changed, the step can be skipped.
type Step struct {
	Program  string `json:"program"` // hash of the command, and of inputs outside of the data directory and the installation
	Install  string `json:"install"` // the image's build number while the installation is the image's, else a hash of the inputs in it
	HostPart string `json:"here"`    // hash of the input files' metadata that is valid only on this host
	Env      string `json:"env"`
	Volume   string `json:"volume"` // hash of inputs in the data directory, after the step ran
}

// Record is the content of the file that records the boot steps.
type Record struct {
	Format int             `json:"format"`
	Steps  map[string]Step `json:"steps"`
}

// Home is the content of the second file of a seed, see IndexSuffix.
type Home struct {
	Record
	Files []File `json:"files"` // a directory comes before its files
}

// Read reads the second file of a seed, which lists the names and modes of the files in the seed.
func Read(seed string) (h Home, err error) {
	data, err := os.ReadFile(seed + IndexSuffix)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err == nil && h.Format != Format {
		err = fmt.Errorf("its format is %d, not %d", h.Format, Format)
	}
	return h, err
}

// File is a file or directory in a seed.
type File struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Size int         `json:"size,omitempty"`
}

// WithoutKey returns the content of an .env file without the key that the boot generates.
func WithoutKey(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if _, mine := KeyOf(line); !mine {
			b.WriteString(line)
		}
	}
	return []byte(b.String())
}

// KeyOf returns the value of the generated key if a line of an .env file assigns the key. mine reports whether the line
// assigns it.
func KeyOf(line string) (value string, mine bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "export "), APIKey)
	if !ok {
		return "", false
	}
	value, ok = strings.CutPrefix(strings.TrimLeft(rest, " "), "=")
	return strings.Trim(value, " \t\r\n\"'"), ok
}
