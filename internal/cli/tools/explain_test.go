package tools

import (
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/cli"
)

func TestExplainSaysWhyWhatIsNextAndWhatToType(t *testing.T) {
	now := time.Now()
	code := func(n int) *int { return &n }
	soon := now.Add(3 * time.Second)
	for name, c := range map[string]struct {
		s    client.Service
		want []string
		not  string
	}{
		"up": {
			s:    client.Service{State: client.StateUp, Want: client.WantUp, Ready: true, Log: "/l"},
			want: []string{"up, since 1m0s", "next", "nothing; when it ends it is started again", "hinit logs coder", "hinit events coder"}, not: "hinit start",
		},
		"a port that is in use": {
			s:    client.Service{State: client.StateUp, Want: client.WantUp, Problem: "platform api is retrying: port 8642 is in use"},
			want: []string{"why", "port 8642 is in use", "waits until it reports that it is ready"},
		},
		"a crash loop": {
			s: client.Service{
				State: client.StateBackoff, Want: client.WantUp, CrashLoop: true, NextStart: &soon, Log: "/l",
				LastExit: &client.Exit{Code: code(1), Cause: "crash", EndedAt: now, Tail: []string{"1", "2", "3", "4", "5", "cannot open \x1b[2J"}},
			},
			want: []string{"backoff (crash-loop)", "its last run ended: code 1 (crash)", "| 2", `| cannot open \x1b[2J`, "started again in 3", "hinit start coder"}, not: "| 1\n",
		},
		"parked": {
			s:    client.Service{State: client.StateParked, Want: client.WantUp, Reason: "exited with code 78"},
			want: []string{"exited with code 78", "nothing until its configuration changes", "hinit start coder"},
		},
		"stopped by an operator": {
			s:    client.Service{State: client.StateDown, Want: client.WantDown},
			want: []string{"an order has stopped it", "nothing until it is started", "hinit start coder"},
		},
		"waiting": {
			s:    client.Service{State: client.StateWaiting, Want: client.WantUp, Needs: []string{"profiles"}},
			want: []string{"it starts when profiles is there"}, not: "hinit logs",
		},
		"what it says, and how it is set": {
			s: client.Service{
				State: client.StateUp, Want: client.WantUp, Ready: true, StatusText: "serving \x1b[2J", Settings: []client.ConfigEntry{{Key: "nice", Value: 3}, {Key: "umask", Value: "027"}},
			},
			want: []string{"says   serving \\x1b[2J\n", "set    nice 3\n", "umask 027\n", "next"}, not: "why ",
		},
		"a log file that can't be written": {
			s:    client.Service{State: client.StateUp, Want: client.WantUp, Ready: true, Output: &client.Output{Error: "cannot open log file"}},
			want: []string{"why    cannot open log file\n"},
		},
		"drifted": {
			s:    client.Service{State: client.StateUp, Want: client.WantUp, Ready: true, Drifted: true},
			want: []string{"an older configuration", "hinit restart coder"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.Name, c.s.Profile, c.s.Since = "gateway-coder", "coder", now.Add(-time.Minute)
			var out strings.Builder
			explain(c.s, now).print(&cli.Terminal{Out: &out})
			rest := out.String()
			for _, want := range c.want {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("there is no %q at its place in\n%s", want, out.String())
				}
				rest = after
			}
			if c.not != "" && strings.Contains(out.String(), c.not) {
				t.Errorf("it says %q:\n%s", c.not, out.String())
			}
		})
	}
}
