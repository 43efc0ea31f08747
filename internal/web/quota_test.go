package web

import (
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// The page must name a profile stopped by its quota with the reason and the remedy, and also a warned profile.
func TestThePageSaysThatAProfileHasTooMuchOnTheDisk(t *testing.T) {
	const full = "disk: its files have 4GiB, and quota.stop is 4GiB; it starts when it has less, or until the next look by: hinit start coder"
	const warned = "disk: its files have 3GiB, and quota.warn is 2GiB"
	code := 0
	stopped := client.Service{
		Name: "gateway-coder", Profile: "coder", Kind: client.KindGateway, State: client.StateWaiting, Want: client.WantUp, Since: time.Now(), Reason: full, Needs: []string{"disk"},
		LastExit: &client.Exit{Code: &code, Cause: "quota", EndedAt: time.Now()}, ExitsByCause: map[string]int{"quota": 1},
	}
	large := coderGateway()
	large.Name, large.Profile, large.Problem = "gateway-writer", "writer", warned
	s := startTestSite(t, Options{Hinit: newFakeHinit(stopped, large)})
	for path, words := range map[string][]string{
		"/":                       {"quota.stop is 4GiB", warned},
		"/service/gateway-coder":  {full, "quota", "disk"},
		"/service/gateway-writer": {warned},
	} {
		_, page := s.request("GET", path, nil)
		for _, word := range words {
			if !strings.Contains(page, word) {
				t.Errorf("%s does not say %q:\n%s", path, word, page)
			}
		}
	}
}
