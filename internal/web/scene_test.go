package web

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// A deaf service must be in the first row, also on a telephone, and no page may be longer than necessary. With -pictures the
// test makes the pictures of the documentation.
func TestTheDeafOneOfFiftyIsFoundAtTheFirstLook(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	dir := t.TempDir()
	now := time.Now()
	var log strings.Builder
	for i, text := range []string{
		"INFO connected to telegram, 3 chats", "INFO session 7f3a begins", "DEBUG prompt of 4,121 tokens", "INFO tool: web_search", "WARNING the provider answers slowly: 11.2 s",
		"INFO tool: terminal", "ERROR cannot reach api.telegram.org: timeout", "Traceback (most recent call last):", "  File \"gateway/telegram.py\", line 211, in poll", "INFO trying again in 5 s",
	} {
		fmt.Fprintf(&log, "%s  %s\n", now.Add(time.Duration(i-12)*time.Minute).UTC().Format("2006-01-02 15:04:05.000000000"), text)
	}
	if err := os.WriteFile(filepath.Join(dir, "current"), []byte(log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFakeHinit()
	code := 1
	for i := range 50 {
		name := []string{"anna", "coder", "docs", "fleet", "home", "mail", "ops", "pay", "research", "sales"}[i%10] + fmt.Sprint("-", i/10+1)
		s := client.Service{
			Name: "gateway-" + name, Profile: name, Kind: client.KindGateway, State: client.StateUp, Want: client.WantUp, Ready: true, ReportsReadiness: true,
			Since: now.Add(-time.Duration(3+i*7) * time.Hour), Restarts: i % 3, Reason: "started", Log: filepath.Join(dir, "current"), PID: 200 + i, RunNumber: uint64(1 + i%3), Command: []string{"hermes", "-p", name, "gateway", "run", "--replace"},
		}
		s.Group = map[string]string{"pay": "payments", "sales": "payments", "mail": "support", "home": "support", "ops": "platform", "fleet": "platform"}[strings.TrimRight(name, "-12345")]
		switch i {
		case 26:
			s.Problem = "it has read nothing from its inbox for 14 min (inbox.fifo); restart it, or look at its threads: hinit explain " + s.Name
			s.Checks = []client.Check{{Name: "deaf", Kind: "alive", Type: "deaf", State: "failing", Failed: true, Failures: 5, Since: now.Add(-14 * time.Minute), Answer: "nothing read for 14 min", AnsweredAt: &now}}
		case 31, 32:
			s.State, s.Want, s.PID, s.Ready = client.StateDown, client.WantDown, 0, false
		case 44:
			s.State, s.Ready, s.Since, s.Reason = client.StateStarting, false, now.Add(-4*time.Second), "waits for its turn (2 before it)"
		}
		if i%9 == 4 {
			s.LastExit = &client.Exit{Code: &code, Cause: "crash", EndedAt: s.Since}
		}
		stat := fmt.Sprintf("%d (agent) S 1 %[1]d %[1]d 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 %d 0", s.PID, 14000+970*(i%13))
		if err := os.MkdirAll(fmt.Sprint(dir, "/proc/", s.PID), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fmt.Sprint(dir, "/proc/", s.PID, "/stat"), []byte(stat), 0o600); err != nil {
			t.Fatal(err)
		}
		f.services = append(f.services, s)
	}
	for i, e := range []struct {
		ago      int
		name     string
		from, to string
	}{{52, "pay-4", "up", "backoff"}, {51, "pay-4", "backoff", "up"}, {33, "mail-2", "up", "backoff"}, {31, "mail-2", "backoff", "up"}, {20, "fleet-1", "up", "backoff"}, {18, "fleet-1", "backoff", "up"}} {
		f.events = append(f.events, client.Event{Seq: uint64(i + 1), At: now.Add(-time.Duration(e.ago) * time.Minute), Service: "gateway-" + e.name, FromState: e.from, ToState: e.to, Reason: "exited with code 1"})
	}
	deaf := f.services[26].Name
	s := startTestSite(t, Options{Hinit: f, Token: testToken, Proc: func(client.Init) string { return dir + "/proc" }})
	b := newBrowser(t)
	b.setSize(1280, 720)
	b.open(s.url + "/login")
	b.call(nil, "Input.insertText", map[string]any{"text": testToken})
	b.pressKey("Enter", 13, 0)
	b.waitFor(`document.querySelectorAll('#rows tr[data-name]').length === 50`)
	m := &s.hub.meter
	// The page shows shares of processors only after the second measurement.
	b.waitFor(`[...document.querySelectorAll('#rows td')].some((c) => c.textContent.endsWith('%'))`)
	m.mu.Lock()
	for i, v := range f.services {
		p := m.histories[v.Name]
		if p == nil {
			continue // a service that is down has no measurement
		}
		for k := range graphPoints {
			wave := 0.03 + 0.02*math.Sin(float64(k*(i%5+1))/3) + 0.4*math.Max(0, math.Sin(float64(k+i*5)/4)-0.9)
			if v.Name == deaf && k > 17 {
				wave = 0
			}
			p.cpu, p.memory = appendPoint(p.cpu, float32(wave)), appendPoint(p.memory, float32(60e6+float64(k)*float64(i%7)*1e6))
		}
		p.lines = [2]string{sparklinePath(p.cpu, minCPU), sparklinePath(p.memory, 1)}
	}
	m.mu.Unlock()
	b.waitFor(`document.querySelectorAll('#rows path').length === 96`)

	first := `[...document.querySelectorAll('#rows tr[data-name]')].filter((r) => !r.hidden && r.getClientRects().length)[0].dataset.name`
	if got := b.evalScript(first); got != deaf {
		t.Errorf("the first row is %v", got)
	}
	if got := b.evalScript(`document.querySelector('[data-name="` + deaf + `"] .state').textContent`); got != "! up, deaf" {
		t.Errorf("it is %v", got)
	}
	if tall := b.evalScript(`[...document.querySelectorAll('#rows tr[data-name]')].filter((r) => r.getClientRects().length && Math.abs(r.getBoundingClientRect().height - 28) > 1).length`); tall != 0.0 {
		t.Errorf("%v rows are not 28 pixels high", tall)
	}
	b.setSize(390, 844)
	b.evalScript(`localStorage.clear(); 0`)
	b.open(s.url + "/")
	b.waitFor(`document.querySelectorAll('#rows tr[data-name]').length === 50`)
	if tall, _ := b.evalScript(`document.documentElement.scrollHeight`).(float64); tall > 1.2*844 {
		t.Errorf("on a telephone it is %v pixels long", tall)
	}
	if got := b.evalScript(first); got != deaf {
		t.Errorf("on a telephone the first row is %v", got)
	}
	picture := func(name string) {
		for _, word := range []string{"light", "dark"} {
			b.setDark(word == "dark")
			b.savePicture("web-" + name + "-" + word + ".png")
		}
	}
	picture("phone")
	b.evalScript(`localStorage.clear(); 0`)
	b.setSize(1280, 720)
	b.open(s.url + "/")
	b.waitFor(`document.getElementById('live').textContent === 'live'`)
	picture("list")

	b.open(s.url + "/?by=group")
	b.waitFor(`document.getElementById('live').textContent === 'live' && document.querySelectorAll('#rows details').length === 4`)
	if got := b.evalScript(`document.querySelector('details[data-key="platform"] tbody tr').dataset.name`); got != deaf {
		t.Errorf("the first row of its group is %v", got)
	}
	if got := b.evalScript(`document.querySelector('details[data-key="support"] .trouble').textContent + document.querySelector('details[data-key="payments"] .trouble').textContent`); got != "" {
		t.Errorf("groups without trouble have %v", got)
	}
	b.evalScript(`document.querySelector('details[data-key="payments"] summary b').click(); document.querySelector('details[data-key="support"] summary b').click(); 0`)
	picture("groups")
	b.setSize(2560, 1440)
	b.open(s.url + "/")
	b.waitFor(`document.getElementById('live').textContent === 'live'`)
	if gap := b.evalScript(`document.querySelector('#rows tbody').getBoundingClientRect().top - document.querySelector('#rows summary').getBoundingClientRect().bottom`); gap.(float64) > 3 {
		t.Errorf("on a wall %v pixels are between a heading and its first row", gap)
	}
	picture("wall")
	b.setSize(1280, 720)
	b.evalScript(`localStorage.clear(); 0`)
	b.open(s.url + "/")
	b.waitFor(`document.getElementById('live').textContent === 'live'`)

	// Open the panel beside the list, and the dialog of its button Stop.
	b.evalScript(`document.querySelector('[data-name="` + deaf + `"] td').click(); 0`)
	b.waitFor(`document.querySelector('#panel #log') !== null`)
	picture("panel")
	b.evalScript(`[...document.querySelectorAll('#panel button')].find((e) => e.textContent === 'Stop').click(); 0`)
	b.waitFor(`document.querySelector('dialog[open]') !== null && document.activeElement.textContent === 'Leave it'`)
	if got := f.orders(); len(got) != 0 {
		t.Errorf("before it was asked for, hinit was told %q", got)
	}
	b.evalScript(`[...document.querySelectorAll('dialog button')].find((e) => e.textContent === 'Stop it').click(); 0`)
	b.waitFor(`location.search === '?done=stop' && document.readyState === 'complete'`)
	b.evalScript(`[...document.querySelectorAll('button')].find((e) => e.textContent === 'Undo').click(); 0`)
	b.waitFor(`location.search === '?done=start' && document.readyState === 'complete'`)
	if got := fmt.Sprint(f.orders()); got != "[stop "+deaf+" start "+deaf+"]" {
		t.Errorf("hinit was told %s", got)
	}

	// Use the palette of commands to open a log.
	b.open(s.url + "/")
	b.pressKey("k", 75, 2)
	b.waitFor(`document.querySelectorAll('#palette li').length > 40`)
	b.call(nil, "Input.insertText", map[string]any{"text": "log pay-4"})
	b.waitFor(`document.querySelectorAll('#palette li').length === 1`)
	b.pressKey("Enter", 13, 0)
	b.waitFor(`location.pathname === '/service/gateway-pay-4/log' && document.readyState === 'complete'`)

	b.open(s.url + "/service/gateway-pay-4/log?level=error")
	if got := b.evalScript(`document.querySelectorAll('#log span').length`); got != 3.0 { // the error, and the lines of its traceback
		t.Errorf("%v lines are errors", got)
	}
	link, _ := b.evalScript(`document.querySelector('#log a').href`).(string)
	b.open(link)
	if got := b.evalScript(`document.querySelector('#log .target').textContent.includes('cannot reach api') && document.querySelectorAll('#log span').length > 5`); got != true {
		t.Errorf("a link to a line shows %v", b.evalScript(`document.getElementById('log').textContent`))
	}
	picture("log")
	b.open(s.url + "/events")
	picture("timeline")

	// If hinit does not answer, the page must say at once that it is old.
	b.open(s.url + "/")
	b.waitFor(`document.getElementById('live').textContent === 'live'`)
	f.change(func() { f.hangs = true })
	b.waitFor(`document.body.classList.contains('stale') && document.getElementById('live').textContent === 'stale: hinit does not answer'`)
	picture("stale")
}
