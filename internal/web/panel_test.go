package web

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// drag moves the mouse with a pressed button over the first element for the selector, from a to b of its width.
func (b *browser) drag(selector string, from, to float64) {
	b.Helper()
	box, _ := b.evalScript(`(() => { const e = document.querySelector('` + selector + `'); e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); return [r.left, r.top + r.height / 2, r.width]; })()`).([]any)
	if len(box) != 3 {
		b.Fatalf("there is no %s", selector)
	}
	left, y, width := box[0].(float64), box[1].(float64), box[2].(float64)
	for _, step := range []struct {
		kind    string
		at      float64
		buttons int
	}{{"mouseMoved", from, 0}, {"mousePressed", from, 1}, {"mouseMoved", (from + to) / 2, 1}, {"mouseMoved", to, 1}, {"mouseReleased", to, 0}} {
		b.call(nil, "Input.dispatchMouseEvent", map[string]any{"type": step.kind, "x": left + step.at*width, "y": y, "button": "left", "buttons": step.buttons, "clickCount": 1})
	}
}

// An operator opens a service in trouble. The panel must show the reason, and its timeline can be enlarged. The log can be
// searched by age, wrapped, downloaded and linked to.
func TestThePanelAndTheLogInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	dir, now := t.TempDir(), time.Now()
	var log strings.Builder
	for _, line := range []struct {
		ago  time.Duration
		text string
	}{{2 * time.Hour, "INFO it begins"}, {30 * time.Minute, "ERROR no answer of the provider"}, {time.Minute, "INFO " + strings.Repeat("a long line ", 60)}} {
		fmt.Fprintf(&log, "%s  %s\n", now.Add(-line.ago).UTC().Format("2006-01-02 15:04:05.000000000"), line.text)
	}
	code, since := 3, now.Add(-20*time.Minute)
	v := coderGateway()
	v.Log, v.PID, v.RunNumber, v.Command, v.Since = filepath.Join(dir, "current"), 321, 7, []string{"hermes", "gateway", "run"}, since
	v.Problem = "it has read nothing for 14 min"
	v.Checks = []client.Check{{Name: "deaf", Kind: "alive", Type: "deaf", State: "failing", Failed: true, Failures: 5, Since: since, Answer: "nothing read"}}
	v.LastExit = &client.Exit{Code: &code, Cause: "crash", EndedAt: since, Tail: []string{"KeyError: 'chat'"}}
	stat := "321 (agent) S 1 321 321 0 -1 0 0 0 0 0 0 0 0 0 20 0 4 0 1 0 20000 0"
	if err := os.MkdirAll(filepath.Join(dir, "proc", "321"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"current": log.String(), "proc/321/stat": stat} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := newFakeHinit(v)
	for i, to := range []string{client.StateBackoff, client.StateUp} {
		from := map[string]string{client.StateUp: client.StateBackoff, client.StateBackoff: client.StateUp}[to]
		f.events = append(f.events, client.Event{Seq: uint64(i + 1), At: since.Add(time.Duration(i) * time.Minute), Service: v.Name, FromState: from, ToState: to, Reason: "exited with code 3"})
	}
	s := startTestSite(t, Options{Hinit: f, Token: testToken, Proc: func(client.Init) string { return dir + "/proc" }})
	b := newBrowser(t)
	b.setSize(1280, 800)
	b.open(s.url + "/login")
	b.call(nil, "Input.insertText", map[string]any{"text": testToken})
	b.pressKey("Enter", 13, 0)
	b.waitFor(`document.querySelectorAll('#rows tr[data-name]').length === 1 && document.getElementById('live').textContent === 'live'`)

	b.evalScript(`document.querySelector('#rows tr[data-name] td').click(); 0`)
	b.waitFor(`document.querySelector('#panel #log') !== null`)
	for what, text := range map[string]string{
		"the cause": "it has read nothing for 14 min", "the last lines": "KeyError: 'chat'", "the last exit": "code 3 (crash)", "the check": "deaf alive, deaf", "its answer": "nothing read",
		"the process": "321, run 7", "the command": "hermes gateway run", "the past": "1 outage, 1m0s", "an event": "up → backoff: exited with code 3", "the log": "ERROR no answer of the provider",
	} {
		if b.evalScript(fmt.Sprintf(`document.getElementById('panel').textContent.includes(%q)`, text)) != true {
			t.Errorf("the panel has not %s, %q", what, text)
		}
	}
	span := func() float64 {
		n, _ := b.evalScript(`(() => { const d = document.querySelector('#panel .zoom').dataset; return d.to - d.from; })()`).(float64)
		return n
	}
	if got := span(); got != 3600 {
		t.Errorf("the panel shows %v seconds of the past", got)
	}
	b.drag("#panel .past", .25, .75)
	b.waitFor(`(() => { const z = document.querySelector('#panel .zoom'); return z && Math.abs(z.dataset.to - z.dataset.from - 1800) < 60; })()`)
	if b.evalScript(`location.pathname + location.hash`) != "/#gateway-coder" {
		t.Errorf("a choice in the panel leads to %v", b.evalScript(`location.href`))
	}
	b.evalScript(`[...document.querySelectorAll('#panel .spans a')].find((a) => a.textContent === 'zoom out').click(); 0`)
	b.waitFor(`(() => { const z = document.querySelector('#panel .zoom'); return z && z.dataset.to - z.dataset.from > 3000; })()`)
	b.pressKey("Escape", 27, 0)
	b.waitFor(`document.getElementById('panel').hidden && location.hash === ''`)

	b.open(s.url + "/events")
	b.drag(".zoom .past", .5, .75)
	b.waitFor(`/^\?from=\d+&to=\d+$/.test(location.search) && document.readyState === 'complete'`)
	b.waitFor(`(() => { const d = document.querySelector('.zoom').dataset; return Math.abs(d.to - d.from - 900) < 60; })()`)

	b.open(s.url + "/service/gateway-coder/log")
	if got := b.evalScript(`document.querySelectorAll('#log span').length`); got != 3.0 {
		t.Errorf("the log has %v lines", got)
	}
	b.evalScript(`(() => { const s = document.getElementById('since'); s.value = '1h'; s.form.requestSubmit(); })()`)
	b.waitFor(`location.search.includes('since=1h') && document.readyState === 'complete' && document.querySelectorAll('#log span').length === 2`)
	if got := b.evalScript(`document.getElementById('since').value`); got != "1h" {
		t.Errorf("the form forgets the age: %v", got)
	}

	// The download must have the lines of the search.
	got, _ := b.evalScript(`(async () => { const a = await fetch([...document.querySelectorAll('a')].find((a) => a.textContent === 'Download').href); return a.status + ' ' + a.headers.get('Content-Disposition') + '\n' + await a.text(); })()`).(string)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 3 || lines[0] != fmt.Sprint(http.StatusOK)+" attachment; filename=gateway-coder.log" || !strings.HasSuffix(lines[1], "ERROR no answer of the provider") {
		t.Errorf("the download is\n%s", got)
	}

	// A long line is wrapped unless the stored setting of this browser has turned that off.
	wide := `document.getElementById('log').scrollWidth > document.getElementById('log').clientWidth`
	if b.evalScript(wide) != false {
		t.Error("a long line does not wrap")
	}
	b.evalScript(`document.getElementById('wrap').click(); 0`)
	if b.evalScript(wide) != true {
		t.Error("a long line wraps though it should not")
	}
	b.open(s.url + "/service/gateway-coder/log?since=24h")
	b.waitFor(`!document.getElementById('wrap').checked && ` + wide)

	// The time of a line links to the lines around it.
	b.evalScript(`[...document.querySelectorAll('#log span')].find((e) => e.textContent.includes('ERROR')).querySelector('a').click(); 0`)
	b.waitFor(`location.search.startsWith('?at=') && document.readyState === 'complete' && document.querySelectorAll('#log .target').length === 1`)
	b.waitFor(`(() => { const r = document.querySelector('#log .target').getBoundingClientRect(); return r.top >= 0 && r.bottom <= innerHeight; })()`)
	if got := b.evalScript(`document.querySelector('#log .target').textContent.includes('ERROR no answer') && document.querySelectorAll('#log span').length === 2`); got != true {
		t.Errorf("the link shows %v", b.evalScript(`document.getElementById('log').textContent`))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		t.Errorf("the console has: %s", strings.Join(b.problems, "\n"))
	}
}
