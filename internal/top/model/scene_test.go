package model_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/procusage"
	"hinit/internal/top/frame"
	"hinit/internal/top/model"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func upService(name string) client.Service {
	return client.Service{
		Name: "gateway-" + name, Profile: name, Kind: client.KindGateway, State: client.StateUp, Want: client.WantUp, PID: 100 + len(name),
		Since: noon.Add(-3 * time.Hour), Ready: true, RunNumber: 1, Log: "/opt/data/logs/gateways/" + name + "/current", Reason: "started",
		Command: []string{"/opt/hermes/.venv/bin/hermes", "-p", name, "gateway", "run", "--replace"},
	}
}

// fiftyServices returns fifty gateways: one is in a crash loop, and one does not answer.
func fiftyServices() []client.Service {
	list := make([]client.Service, 0, 50)
	for i := range 50 {
		s := upService(fmt.Sprintf("agent%02d", i))
		s.PID = 100 + i
		list = append(list, s)
	}
	code, next := 3, noon.Add(14*time.Second)
	loop := &list[17]
	loop.State, loop.PID, loop.CrashLoop, loop.Restarts, loop.ConsecutiveFailures = client.StateBackoff, 0, true, 7, 8
	loop.Since, loop.NextStart, loop.Ready, loop.Reason = noon.Add(-6*time.Second), &next, false, "exited with code 3"
	loop.Problem = `crash loop: exited with code 3: KeyError: 'workspace'`
	loop.LastExit = &client.Exit{
		Code: &code, Cause: "crash", EndedAt: noon.Add(-6 * time.Second), UptimeSeconds: 0.4, PID: 4711,
		Tail: []string{"Traceback (most recent call last):", `  File "gateway.py", line 212, in load`, "KeyError: 'workspace'"},
	}
	deaf := &list[31]
	deaf.Problem = "deaf: no heartbeat for 4m10s, and /health does not answer"
	deaf.Checks = []client.Check{{Name: "deaf", Type: "deaf", State: "failing", Failed: true}}
	return list
}

func newTestModel(width, height int, services []client.Service, keys ...string) *model.Model {
	m := model.New(0, "")
	m.Resize(width, height)
	m.ApplyChange(0, client.StatusChange{IsComplete: true, Init: client.Init{PID: 1, Home: "/opt/data", UptimeSeconds: 3 * 3600}, Services: services}, noon)
	addMeasurements(m, 0, services)
	for _, k := range keys {
		m.Key(k)
	}
	return m
}

// addMeasurements adds twelve measurements to the services of a host.
func addMeasurements(m *model.Model, host int, services []client.Service) {
	for at := range 12 {
		used := make(map[string]procusage.Usage)
		for i := range services {
			if services[i].PID != 0 {
				used[services[i].Name] = procusage.Usage{
					CPU: float64((at*7+i*3)%11) / 200, Memory: uint64(90+(i*13)%70+at%(i%5+1)) * 1_000_000, Processes: 1 + i%3,
				}
			}
		}
		m.SetUsage(host, used, noon)
	}
}

// TestThePictureIsTheScreen compares the pictures in the docs with the screen. With WRITE_PICTURE=1 it draws them again.
func TestThePictureIsTheScreen(t *testing.T) {
	for name, scene := range map[string]*model.Model{
		"top":       newTestModel(124, 26, fiftyServices(), "d"),
		"top-hosts": newModelWithThreeHosts(124, 20, "p"),
		"top-80":    newTestModel(80, 24, fiftyServices(), "l", "L", "L"),
	} {
		checkPicture(t, name, scene.Frame())
	}
}

// newModelWithThreeHosts returns hosts with a group each; one host does not answer.
func newModelWithThreeHosts(width, height int, keys ...string) *model.Model {
	m := model.New(0, "eu-1", "us-1", "us-2")
	m.Resize(width, height)
	all := fiftyServices()
	for i := range all {
		all[i].Group = []string{"payments", "support", "research"}[i%3]
	}
	for host, services := range [][]client.Service{all[10:20], all[24:34], all[40:45]} {
		m.ApplyChange(host, client.StatusChange{IsComplete: true, Init: client.Init{PID: 1, UptimeSeconds: 3 * 3600}, Services: services}, noon)
		addMeasurements(m, host, services)
	}
	m.HostLost(2, "no hinit listens on \"/run/us-2/control.sock\"", noon.Add(-4*time.Second))
	for _, k := range keys {
		m.Key(k)
	}
	m.Tick(noon.Add(time.Second))
	return m
}

func checkPicture(t *testing.T, name string, f frame.Frame) {
	t.Helper()
	title := map[string]string{
		"top":       "hinit top: fifty gateways, of which one loops and one is deaf",
		"top-hosts": "hinit top: the groups of three hosts, of which one does not answer",
		"top-80":    "hinit top on 80 columns",
	}[name]
	for dark, file := range map[bool]string{false: name + "-light.svg", true: name + "-dark.svg"} {
		path := "../../../docs/img/" + file
		want := renderSVG(f, dark, title)
		if os.Getenv("WRITE_PICTURE") != "" {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what the screen shows (%v); draw it again with WRITE_PICTURE=1\n%s", file, err, frameText(f))
		}
	}
}

// Every screen size must show names, states and the last line, without too long lines and too high frames.
func TestTheTroublesAreSeenOnEverySize(t *testing.T) {
	for _, keys := range [][]string{nil, {"d"}, {"l"}, {"e"}, {"l", "tab", "z"}, {"?"}, {"p"}, {"/", "x"}, {"*", "R"}} {
		for _, size := range [][2]int{{1, 1}, {2, 3}, {10, 5}, {40, 12}, {80, 24}, {124, 26}, {250, 70}} {
			f := newTestModel(size[0], size[1], fiftyServices(), keys...).Frame()
			lines := strings.Split(strings.TrimSuffix(frameText(f), "\n"), "\n")
			if len(f.Lines) != size[1] {
				t.Errorf("%v at %v: %d lines", keys, size, len(f.Lines))
			}
			for _, l := range lines {
				if frame.Width(l) > size[0] {
					t.Errorf("%v at %v: %q is too wide", keys, size, l)
				}
			}
			if keys == nil && size[0] >= 40 && (!strings.Contains(lines[2], "agent17") || !strings.Contains(lines[2], "✗ crash-loop") || !strings.Contains(lines[3], "agent31")) {
				t.Errorf("at %v:\n%s", size, frameText(f))
			}
		}
	}
}

// A frame must contain no other terminal sequences than colours, whatever names, notes, log lines and commands contain.
func TestNothingButColoursIsObeyed(t *testing.T) {
	const bad = "\x1b]0;owned\a\x1b[2J\u202e\u0085\xff\u200b\r\n\t\x9b31m e\u0301\u0301\u0301\u0301"
	s := upService("x")
	s.Name, s.Profile, s.Problem, s.Reason, s.Command, s.Log = bad, bad, bad, bad, []string{bad}, "/"+bad
	s.LastExit = &client.Exit{Cause: bad, Tail: []string{bad}, Error: bad}
	for _, keys := range [][]string{{"d"}, {"l"}, {"e"}, {"p"}, {"R"}, {"/"}} {
		m := newTestModel(200, 40, []client.Service{s}, keys...)
		m.AddLogLines(model.Log{ID: model.ID{Name: bad}, File: "/" + bad}, []model.LogLine{{Text: bad}})
		m.AddEvent(0, client.Event{Service: bad, Reason: bad, FromState: "up", ToState: "down", Exit: &client.Exit{Cause: bad}})
		m.SetProcessDetails(model.ProcessDetails{ID: model.ID{Name: bad}, Missing: bad, Environment: []string{bad}, Processes: []model.Process{{PID: 1, Command: bad}}})
		m.HostLost(0, bad, noon)
		m.OrderEnded(model.Order{Verb: client.VerbStart, ID: model.ID{Name: bad}}, errors.New(bad))
		checkEscapes(t, m.Frame())
	}
}

// checkEscapes fails the test if a frame contains an escape sequence that is not a colour.
func checkEscapes(t *testing.T, f frame.Frame) {
	t.Helper()
	for _, theme := range frame.Themes {
		text := f.ANSI(theme)
		for i := 0; i < len(text); i++ {
			switch c := text[i]; {
			case c == '\n':
			case c == 0x1b:
				end := strings.IndexByte(text[i:], 'm')
				if end < 0 || strings.Trim(text[i+1:i+end], "[0123456789;") != "" {
					t.Fatalf("a terminal would obey %q", text[i:min(i+20, len(text))])
				}
				i += end
			case c < ' ', c == 0x7f:
				t.Fatalf("a terminal would obey %q", text[i:min(i+20, len(text))])
			}
		}
		for _, r := range text {
			if r >= 0x80 && r < 0xa0 || r == 0x202e || r == 0x200b || r == 0xfffd {
				t.Fatalf("%U is in the frame", r)
			}
		}
	}
}

// frameText returns the text of a frame without colours and without spaces at the ends of lines.
func frameText(f frame.Frame) string {
	var b strings.Builder
	for i := range min(len(f.Lines), f.Height) {
		fitted := frame.Line{Spans: f.Lines[i].Fit(f.Width)}
		b.WriteString(strings.TrimRight(fitted.String(), " ") + "\n")
	}
	return b.String()
}
