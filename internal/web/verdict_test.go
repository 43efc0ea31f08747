package web

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/forward"
	"hinit/internal/metrics"
)

// allServiceStates returns services in all states, with and without each kind of trouble.
func allServiceStates() (all []client.Service) {
	for _, state := range []string{
		client.StateDown, client.StateWaiting, client.StateStarting, client.StateUp, client.StateStopping, client.StateKilling,
		client.StateFinishing, client.StateBackoff, client.StateParked, client.StateFailed,
	} {
		for bits := range 1 << 7 {
			s := client.Service{Name: fmt.Sprintf("%s-%d", state, bits), Kind: client.KindGateway, State: state, Want: client.WantUp, Ready: bits&1 == 0, Since: time.Now()}
			if bits&2 != 0 {
				s.Want = client.WantDown
			}
			s.CrashLoop, s.Paused = bits&4 != 0, bits&8 != 0
			if bits&16 != 0 {
				s.Checks = append(s.Checks, client.Check{Name: "deaf", Type: "deaf", Failed: true})
			}
			if bits&32 != 0 {
				s.Checks = append(s.Checks, client.Check{Name: "health", Type: "http", Failed: true})
			}
			if bits&64 != 0 {
				s.Problem = "a word"
			}
			all = append(all, s)
		}
	}
	return all
}

// The page, the status and the metrics must agree about every service. A service in trouble in one of them must not look
// healthy in another.
func TestPageStatusAndMetricsSayTheSameOfEveryService(t *testing.T) {
	all := allServiceStates()
	st := client.Status{Version: client.StatusVersion, Services: all}
	var series strings.Builder
	c := &metrics.Collector{
		Source: newFakeHinit(all...), ProcPath: func(client.Init) string { return "" },
		ForwardCounters: func(client.Init) (p forward.Positions, err error) { return p, fs.ErrNotExist },
		MaxServices:     len(all), Now: time.Now, Context: t.Context,
	}
	if err := metrics.Write(&series, c); err != nil {
		t.Fatal(err)
	}
	problems := make(map[string]bool)
	for line := range strings.Lines(series.String()) {
		if strings.HasPrefix(line, "hinit_service_problem{") && !strings.Contains(line, `kind="not-ready"`) {
			_, rest, _ := strings.Cut(line, `service="`)
			name, _, _ := strings.Cut(rest, `"`)
			problems[name] = true
		}
	}
	red, green := make(map[string]bool), make(map[string]bool)
	for line := range strings.Lines(string(show.StatusTable(st, show.Layout{Colour: true}))) {
		name := strings.Fields(line)
		if len(name) > 1 {
			red[name[0]], green[name[0]] = strings.Contains(line, "\x1b[31m"), strings.Contains(line, "\x1b[32m")
		}
	}
	count := 0
	for i := range all {
		s := &all[i]
		class := markOf(s).Class
		if bad := class == "bad"; bad != red[s.Name] || bad != problems[s.Name] || (class == "good") != green[s.Name] {
			t.Errorf("%+v: the page says %s, status red %v and green %v, metrics a problem %v", *s, class, red[s.Name], green[s.Name], problems[s.Name])
		}
		if class == "bad" {
			count++
		}
	}
	if head := makeHeadView(&st, "", usageSample{}); count < 100 || head.Troubled != count {
		t.Errorf("%d services are in trouble, the page counts %d", count, head.Troubled)
	}
}
