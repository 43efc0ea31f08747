package e2e

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"hinit/internal/testkit"
)

// runID identifies this test run; runLabel marks its containers, volumes and images.
var (
	runID    = strings.ToLower(rand.Text()[:10])
	runLabel = "hinit-e2e=" + runID
)

func TestMain(m *testing.M) {
	testkit.IsolateProcess()
	testkit.ShareSlots(8) // Run more tests than processors, because container tests mostly wait.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-interrupted
		removeLeftoverContainers()
		os.Exit(1)
	}()
	code := m.Run()
	removeLeftoverContainers()
	os.Exit(code)
}

// removeLeftoverContainers removes everything that the tests and docker compose created.
func removeLeftoverContainers() {
	if !built.Load() {
		return
	}
	named := "hinit-e2e-" + runID
	for _, kind := range []struct {
		list, rm []string
		byName   string
	}{
		{[]string{"ps", "-aq"}, []string{"rm", "-fv"}, "name=" + named},
		{[]string{"volume", "ls", "-q"}, []string{"volume", "rm", "-f"}, "name=" + named},
		{[]string{"network", "ls", "-q"}, []string{"network", "rm"}, "name=" + named},
		// Remove images by name, because another test run may have the same image under another name.
		{[]string{"images", "--format", "{{.Repository}}:{{.Tag}}"}, []string{"rmi"}, "reference=" + named + "*"},
	} {
		remove(kind.list, kind.rm, "label="+runLabel)
		remove(kind.list, kind.rm, kind.byName)
	}
	if dir := buildContext.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
}

// remove removes the listed items that match a filter.
func remove(list, rm []string, filter string) {
	var r result
	for range 3 { // Remove derived images before their bases.
		ids := strings.Fields(docker(slices.Concat(list, []string{"--filter", filter})...).out)
		if len(ids) == 0 {
			return
		}
		r = docker(slices.Concat(rm, ids)...)
	}
	fmt.Fprintln(os.Stderr, "e2e: cannot clean up:", r)
}
