package limits

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/dotenv"
	"hinit/internal/trust"
)

// variableLetters are the characters allowed in a variable name that comes from a file name.
const variableLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

// maxEnvFile limits the size of an environment file, in bytes; an environment can hardly be larger (execve(2)).
const maxEnvFile = 1 << 20

// variablesOf returns the variables of an environment file. If path is a directory, such as a mounted Secret, each file in it
// is a variable with the name of the file. Files whose names can't be variable names are left out.
func variablesOf(path string, judge envJudge) ([]dotenv.Var, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		text, err := readEnvFile(path, judge)
		return dotenv.Parse(text), err
	}
	doubt, err := trust.Check(path, judge.trustJudge())
	if err = errors.Join(err, judge.untrustedError(doubt)); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var vars []dotenv.Var
	for _, e := range entries {
		if strings.Trim(e.Name(), variableLetters) != "" {
			continue
		}
		one, err := variableFromFile(e.Name(), filepath.Join(path, e.Name()), judge)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		vars = append(vars, one...)
	}
	return vars, nil
}

// variableFromFile returns a variable whose value is the content of a file, without newlines at the end.
func variableFromFile(name, path string, judge envJudge) ([]dotenv.Var, error) {
	text, err := readEnvFile(path, judge)
	return []dotenv.Var{{Name: name, Raw: strings.TrimRight(text, "\r\n")}}, err
}

// readEnvFile reads an environment file with the identity of this process. As root, or with judge.own, it refuses a file that
// another user can change: LD_PRELOAD in it would execute that user's code.
func readEnvFile(path string, judge envJudge) (string, error) {
	fd, doubt, err := trust.Open(filepath.Clean(path), judge.trustJudge())
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := judge.untrustedError(doubt); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err == nil && len(text) > maxEnvFile {
		err = fmt.Errorf("it has more than %d bytes", maxEnvFile)
	}
	return string(text), err
}

// envJudge decides which environment files to refuse: see RefuseForeignFiles and RefuseLinks in [proc.Setup].
type envJudge struct{ own, noLinks bool }

// trustJudge returns the check for package trust that applies to this process's user.
func (j envJudge) trustJudge() trust.Judge {
	switch uid := os.Geteuid(); {
	case j.own || uid == 0:
		return trust.OwnedBy(uint32(uid))
	case j.noLinks:
		return trust.RootOnly
	}
	return nil
}

func (j envJudge) untrustedError(doubt *trust.Doubt) error {
	linksOnly := j.noLinks && !j.own && os.Geteuid() != 0
	switch {
	case doubt == nil, linksOnly && !doubt.Link:
		return nil
	case linksOnly:
		return fmt.Errorf("a link leads to it, and others than root can change %s; put the file itself there", doubt.Path)
	}
	return fmt.Errorf("uid %d can't believe it: %s, or keep the file where only root can write", os.Geteuid(), doubt)
}
