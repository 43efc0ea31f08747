package promises_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// TestTheAgentDoesNotBecomeRootByAConfigurationThatItSwaps checks that no service runs as root
// although the agent keeps exchanging hinit.yaml during reloads.
func TestTheAgentDoesNotBecomeRootByAConfigurationThatItSwaps(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{})
	etc, marker := b.path("etc"), b.path("became-root")
	text, err := os.ReadFile(b.path("hinit.yaml"))
	b.check(err, os.Mkdir(etc, 0o755), os.WriteFile(etc+"/hinit.yaml", text, 0o644))
	b.env = []string{"HINIT_CONFIG=" + etc + "/hinit.yaml"}
	b.boot()

	evil := fmt.Sprintf("services: {evil: {command: [sh, -c, 'id -u >>%s; exec sleep 1000'], user: root}}\n", marker)
	b.check(os.Remove(etc+"/hinit.yaml"), os.Symlink(b.path("hinit.yaml"), etc+"/hinit.yaml"),
		os.WriteFile(etc+"/evil", append(text, evil...), 0o644), os.WriteFile(etc+"/twin", text, 0o644), chownTree(etc, b.uid), os.Chown(etc+"/twin", 0, 0))
	stop, stopped := make(chan struct{}), make(chan struct{})
	var swaps atomic.Int64
	go func() {
		defer close(stopped)
		for {
			for _, other := range []string{"/evil", "/twin"} {
				_ = unix.Renameat2(unix.AT_FDCWD, etc+"/hinit.yaml", unix.AT_FDCWD, etc+other, unix.RENAME_EXCHANGE)
				swaps.Add(1)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	reloads, believed := shortOrFull(200, 5000), 0
	for range reloads {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := b.client.Reload(ctx, client.Reload{}); err == nil {
			believed++
		} else if !slices.ContainsFunc([]string{
			// The agent may exchange the file while hinit opens it.
			"it is root's to decide, and " + etc, "a link leads to it that others than root can have made", unix.ELOOP.Error(),
		}, func(words string) bool { return strings.Contains(err.Error(), words) }) {
			t.Errorf("reload: %v", err)
		}
		cancel()
	}
	close(stop)
	<-stopped
	if uids, err := os.ReadFile(marker); err == nil {
		t.Errorf("a service of the agent's ran as uid %s", uids)
	}
	if believed > 0 {
		t.Errorf("%d of %d reloads believed a file that the agent could exchange", believed, reloads)
	}
	if _, err := b.service("evil"); err == nil {
		t.Error("hinit knows a service of the agent's that names root")
	}
	sheet.add("config reloads", reloads)
	sheet.add("config swaps", int(swaps.Load()))
}
