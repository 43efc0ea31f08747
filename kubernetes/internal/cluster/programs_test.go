package cluster

import (
	"os"
	"regexp"
	"testing"
)

// requireLine matches a line of go.mod that requires a module, and captures the module and its
// version.
var requireLine = regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+) (v\S+)(?: // indirect)?$`)

func requiredVersions(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range requireLine.FindAllStringSubmatch(string(text), -1) {
		found[m[1]] = m[2]
	}
	return found
}

// TestNothingIsCompiledTwice compares the modules of the programs with the tests' own. A module with two versions is compiled twice, and so is
// every package that imports it: client-go, for example, which takes minutes.
func TestNothingIsCompiledTwice(t *testing.T) {
	own, both := requiredVersions(t, "../../go.mod"), 0
	for _, file := range []string{"programs/etcd/go.mod", "programs/kube/go.mod"} {
		for name, version := range requiredVersions(t, file) {
			if has := own[name]; has == version {
				both++
			} else if has != "" {
				t.Errorf("%s has %s %s, and kubernetes/go.mod has %s: go get it in both, and go mod tidy", file, name, version, has)
			}
		}
	}
	if both < 20 {
		t.Errorf("only %d modules are compared", both)
	}
}
