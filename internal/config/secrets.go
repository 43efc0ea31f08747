package config

import (
	"path"
	"slices"
	"strings"
)

const (
	fileSuffix = "_FILE"
	// secretsDir is where engines mount secrets. Other variables of such names, as SSL_CERT_FILE, are for the programs.
	secretsDir = "/run/secrets/"
)

// SecretFiles returns an entry NAME=PATH for each variable NAME_FILE of an environment that names a file below /run/secrets. A variable of
// hinit's own gives none, and neither does one whose NAME is set.
func SecretFiles(environ []string) (files []string) {
	set := map[string]bool{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		set[name] = value != ""
	}
	for _, v := range environ {
		file, at, _ := strings.Cut(v, "=")
		name, is := strings.CutSuffix(file, fileSuffix)
		if is && name != "" && !strings.HasPrefix(name, "HINIT_") && !set[name] && strings.HasPrefix(path.Clean(at), secretsDir) {
			files = append(files, name+"="+path.Clean(at))
		}
	}
	slices.Sort(files)
	return files
}
