package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/sandbox/dockercli"
)

// profileOf returns the home directory and the profile of a caller. If hinit knows that the caller pid descends from a gateway,
// the profile is the gateway's. Otherwise profileOf derives the profile from claimed, the home that the caller states. All
// profiles run as one user, so this prevents mistakes, not attacks (docs/explanation/sandboxes.md). A home outside of this
// volume's profiles counts as the default profile. A profile without a directory is an error.
func (h *service) profileOf(ctx context.Context, pid int, claimed string) (home, profile string, err error) {
	profiles := filepath.Join(h.opts.Home, "profiles")
	gateways := h.gateways(ctx)
	for at := pid; at > 1 && len(gateways) > 0; {
		if profile, is := gateways[at]; is {
			if profile == "default" {
				return h.opts.Home, profile, nil
			}
			return filepath.Join(profiles, profile), profile, nil
		}
		_, parent, err := dockercli.ProcessName(at)
		if err != nil {
			break
		}
		at = parent
	}
	home = filepath.Clean(claimed)
	if filepath.Dir(home) != profiles {
		return h.opts.Home, "default", nil
	}
	dir, err := fsutil.OpenDir(h.opts.Home, fsutil.Self())
	if err == nil {
		defer dir.Close()
		var info fs.FileInfo
		if info, err = dir.Lstat("profiles/" + filepath.Base(home)); err == nil && !info.IsDir() {
			err = errors.New("it is no directory")
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("cannot use the sandboxes of the profile %q: there is no home %q (%w)", filepath.Base(home), home, err)
	}
	return home, filepath.Base(home), nil
}

// gatewaysKeepTime limits how long the service caches hinit's list of gateways. The cache helps because an agent sends many
// commands in a row.
const gatewaysKeepTime = 2 * time.Second

// newGatewayLookup returns a function that asks hinit for the profile of each gateway process. The returned function yields nil
// if hinit does not run here.
func newGatewayLookup(lookup func(string) (string, bool)) func(context.Context) map[int]string {
	cl := cmdline.Here(lookup)
	var mu sync.Mutex
	var known map[int]string
	var at time.Time
	return func(ctx context.Context) map[int]string {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) < gatewaysKeepTime {
			return known
		}
		known, at = nil, time.Now()
		status, err := cl.Status(ctx)
		if err != nil {
			return nil
		}
		known = lo.FilterSliceToMap(status.Services, func(s client.Service) (int, string, bool) {
			return s.PID, s.Profile, s.Profile != "" && s.PID > 0
		})
		return known
	}
}
