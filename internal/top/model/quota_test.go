package model_test

import (
	"strings"
	"testing"

	"hinit/client"
)

// The rows of a stopped and of a warned profile must name the disk, and the pane must show the whole reason.
func TestTheScreenSaysThatAProfileHasTooMuchOnTheDisk(t *testing.T) {
	stopped, warned := upService("coder"), upService("writer")
	code := 0
	stopped.State, stopped.PID, stopped.Ready, stopped.Needs = client.StateWaiting, 0, false, []string{"disk"}
	stopped.Reason = "disk: its files have 4GiB, and quota.stop is 4GiB; it starts when it has less, or until the next look by: hinit start coder"
	stopped.LastExit = &client.Exit{Code: &code, Cause: "quota", EndedAt: noon}
	warned.Problem = "disk: its files have 3GiB, and quota.warn is 2GiB"
	list := []client.Service{stopped, warned}
	for _, tt := range []struct {
		keys  []string
		words []string
	}{
		{nil, []string{" quota ", "waits for disk", "quota.warn is 2GiB"}},
		{[]string{"/", "c", "o", "d", "e", "r", "enter", "d"}, []string{"quota.stop is 4GiB", "(quota)", "hinit start coder"}},
	} {
		text := frameText(newTestModel(200, 40, list, tt.keys...).Frame())
		for _, word := range tt.words {
			if !strings.Contains(text, word) {
				t.Errorf("%v: %q is missing:\n%s", tt.keys, word, text)
			}
		}
	}
}
