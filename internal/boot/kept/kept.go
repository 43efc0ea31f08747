// Package kept defines the seed: the file in which an image keeps the contents of a data directory after a first boot. Package
// keep writes the seed during the build of the image, and the boot reads it. The package starts no goroutine.
package kept

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

const (
	// IndexSuffix is the suffix of the seed's second file, which lists the names and modes of the files in the seed.
	IndexSuffix = ".json"
	// MaxRecord is the maximum size in bytes of the record of boot steps.
	MaxRecord = 1 << 20
	// Format is the version of the seed and of the record. If a record has another version, hinit ignores it and runs all steps.
	Format = 3
	// LostAndFound is a directory that every new ext4 file system contains. hinit counts a volume with only this directory as empty.
	LostAndFound = "lost+found"
	// APIKey is the variable in .env whose value the boot generates.
	APIKey = "API_SERVER_KEY"
)

// StepHashes has hashes of the inputs of a boot step at its last success. With the same hashes, a boot can skip the step.
type StepHashes struct {
	// hash of the command, and of all inputs outside the data directory and the installation
	Program string `json:"program"`
	// build number of the image if the installation is unchanged, otherwise hash of its inputs
	Install  string `json:"install"`
	HostPart string `json:"here"` // hash of metadata of input files, valid only on this host
	Env      string `json:"env"`
	Volume   string `json:"volume"` // hash of inputs in the data directory, after the step
}

// Record is the content of the record of boot steps.
type Record struct {
	Format int                   `json:"format"`
	Steps  map[string]StepHashes `json:"steps"`
}

// Index is the content of a seed's second file, see IndexSuffix.
type Index struct {
	Record
	Files []File `json:"files"` // files and directories of the seed; each directory before its files
}

// ReadIndex reads the second file of a seed.
func ReadIndex(seed string) (h Index, err error) {
	data, err := os.ReadFile(seed + IndexSuffix)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err == nil && h.Format != Format {
		err = fmt.Errorf("its format is %d, not %d", h.Format, Format)
	}
	return h, err
}

// File is the entry of one file or directory in a seed.
type File struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Size int         `json:"size,omitempty"`
}

// WithoutKey returns the content of an .env file without the key that the boot has generated.
func WithoutKey(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if _, mine := GeneratedKey(line); !mine {
			b.WriteString(line)
		}
	}
	return []byte(b.String())
}

// GeneratedKey returns the value of [APIKey] if a line of an .env file sets this variable. sets reports whether it does.
func GeneratedKey(line string) (value string, sets bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "export "), APIKey)
	if !ok {
		return "", false
	}
	value, ok = strings.CutPrefix(strings.TrimLeft(rest, " "), "=")
	return strings.Trim(value, " \t\r\n\"'"), ok
}
