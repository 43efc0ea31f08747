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
	// MaxRecordSize is the maximum size in bytes of the record of boot steps.
	MaxRecordSize = 1 << 20
	// FormatVersion is the version of the seed and of the record. If a record has another version, hinit ignores it and runs all
	// steps.
	FormatVersion = 3
	// LostAndFound is a directory that every new ext4 file system contains. hinit counts a volume with only this directory as empty.
	LostAndFound = "lost+found"
	// APIKeyVar is the variable in .env whose value the boot generates.
	APIKeyVar = "API_SERVER_KEY"
)

// StepHashes has hashes of the inputs of a boot step at its last success. With the same hashes, a boot can skip the step.
type StepHashes struct {
	// hash of the command, and of all inputs outside the data directory and the installation
	ProgramHash string `json:"program"`
	// build number of the image if the installation is unchanged, otherwise hash of its inputs
	InstallHash string `json:"install"`
	HostHash    string `json:"here"` // hash of metadata of input files, valid only on this host
	EnvHash     string `json:"env"`
	VolumeHash  string `json:"volume"` // hash of inputs in the data directory, after the step
}

// StepRecord is the content of the record of boot steps.
type StepRecord struct {
	Format int                   `json:"format"`
	Steps  map[string]StepHashes `json:"steps"`
}

// SeedIndex is the content of a seed's second file, see IndexSuffix.
type SeedIndex struct {
	StepRecord
	Files []SeedFile `json:"files"` // files and directories of the seed; each directory before its files
}

// ReadIndex reads the second file of a seed.
func ReadIndex(seed string) (h SeedIndex, err error) {
	data, err := os.ReadFile(seed + IndexSuffix)
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err == nil && h.Format != FormatVersion {
		err = fmt.Errorf("its format is %d, not %d", h.Format, FormatVersion)
	}
	return h, err
}

// SeedFile is the entry of one file or directory in a seed.
type SeedFile struct {
	Name string      `json:"name"`
	Mode fs.FileMode `json:"mode"`
	Size int         `json:"size,omitempty"`
}

// WithoutGeneratedKey returns the content of an .env file without the key that the boot has generated.
func WithoutGeneratedKey(data []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if _, mine := GeneratedKey(line); !mine {
			b.WriteString(line)
		}
	}
	return []byte(b.String())
}

// GeneratedKey returns the value of [APIKeyVar] if a line of an .env file sets this variable. sets reports whether it does.
func GeneratedKey(line string) (value string, sets bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "export "), APIKeyVar)
	if !ok {
		return "", false
	}
	value, ok = strings.CutPrefix(strings.TrimLeft(rest, " "), "=")
	return strings.Trim(value, " \t\r\n\"'"), ok
}
