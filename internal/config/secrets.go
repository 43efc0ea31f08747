package config

import (
	"path"
	"slices"
	"strings"
)

const (
	fileSuffix = "_FILE"
	// secretsDir is the directory where container engines mount secrets. A variable NAME_FILE names a secret only if its value is
	// a path in this directory. Other variables, such as SSL_CERT_FILE, are meant for the program itself.
	secretsDir = "/run/secrets/"
)

// SecretFiles returns an entry NAME=PATH for each variable NAME_FILE of an environment whose value is a file below /run/secrets.
// It ignores hinit's own variables, and a variable NAME_FILE if NAME is set too.
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
