package web

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
)

var pictures = flag.String("pictures", "", "write screenshots into this directory")

// browser is Debian's Chromium, controlled over a pipe (--remote-debugging-pipe) by JSON messages that end with a zero byte.
type browser struct {
	*testing.T
	input   *os.File
	session string

	mu       sync.Mutex
	nextID   int
	waiting  map[int]chan json.RawMessage
	problems []string // errors of the console, and exceptions of the page
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium-headless-shell") // needs less than half of the processor time of chromium
	if err != nil {
		testkit.SkipOrFail(t, "needs chromium-headless-shell (test/install-tools)")
	}
	read, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.Command(path, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
		"--disable-background-networking", "--user-data-dir="+home, "--remote-debugging-pipe", "about:blank")
	cmd.Env = []string{"HOME=" + home, "PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=" + home}
	cmd.ExtraFiles = []*os.File{read, write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = read.Close(), write.Close()
	b := &browser{T: t, input: in, waiting: map[int]chan json.RawMessage{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.listen(bufio.NewReader(out))
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = in.Close()
		_ = out.Close()
		<-done
		testkit.Until(t, "the browser's files are gone", func() bool { return os.RemoveAll(home) == nil })
	})
	var target struct{ TargetID string }
	b.call(&target, "Target.createTarget", map[string]any{"url": "about:blank"})
	var attached struct{ SessionID string }
	b.call(&attached, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(nil, domain+".enable", nil)
	}
	return b
}

func (b *browser) listen(r *bufio.Reader) {
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID            int
			Method        string
			Result, Error json.RawMessage
			Params        json.RawMessage
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0:
			if c := b.waiting[m.ID]; c != nil {
				if m.Error != nil {
					m.Result = json.RawMessage(`{"failed":` + string(m.Error) + `}`)
				}
				c <- m.Result
			}
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded", m.Method == "Runtime.consoleAPICalled":
			b.problems = append(b.problems, string(m.Params))
		}
		b.mu.Unlock()
	}
}

func (b *browser) call(result any, method string, params map[string]any) {
	b.Helper()
	reply := b.sendCommand(method, params)
	if strings.HasPrefix(string(reply), failedJSON) {
		b.Fatalf("%s: %s", method, reply)
	}
	if result != nil {
		if err := json.Unmarshal(reply, result); err != nil {
			b.Fatal(err)
		}
	}
}

const failedJSON = `{"failed"`

func (b *browser) sendCommand(method string, params map[string]any) json.RawMessage {
	b.Helper()
	answer := make(chan json.RawMessage, 1)
	b.mu.Lock()
	b.nextID++
	id := b.nextID
	b.waiting[id] = answer
	message := map[string]any{"id": id, "method": method}
	if params != nil {
		message["params"] = params
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	text, err := json.Marshal(message)
	if err == nil {
		_, err = b.input.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		b.Fatal(err)
	}
	select {
	case reply := <-answer:
		return reply
	case <-time.After(testkit.Patience):
		b.Fatalf("%s: no answer", method)
		return nil
	}
}

// evalScript runs a script in the page and returns its value.
func (b *browser) evalScript(script string) any {
	b.Helper()
	var reply struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.call(&reply, "Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true})
	if reply.ExceptionDetails != nil {
		b.Fatalf("%s: %s", script, reply.ExceptionDetails)
	}
	return reply.Result.Value
}

func (b *browser) waitFor(script string) {
	b.Helper()
	testkit.Until(b.T, script, func() bool {
		reply := b.sendCommand("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true})
		var is struct{ Result struct{ Value any } }
		return json.Unmarshal(reply, &is) == nil && is.Result.Value == true // the script fails while the page changes
	})
}

func (b *browser) open(url string) {
	b.Helper()
	b.call(nil, "Page.navigate", map[string]any{"url": url})
	b.waitFor(`location.href === ` + fmt.Sprintf("%q", url) + ` && document.readyState === 'complete'`)
}

func (b *browser) pressKey(name string, code, modifiers int) {
	b.Helper()
	text := map[string]string{"Enter": "\r"}[name]
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call(nil, "Input.dispatchKeyEvent", map[string]any{"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers, "text": text})
	}
}

func (b *browser) setDark(is bool) {
	value := "light"
	if is {
		value = "dark"
	}
	b.call(nil, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": value}}})
}

func (b *browser) setSize(width, height int) {
	b.call(nil, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
}

func (b *browser) savePicture(name string) {
	if *pictures == "" {
		return
	}
	var shot struct{ Data string }
	b.call(&shot, "Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false})
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(*pictures, name), data, 0o644)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// lowContrastScript returns the texts of a page with a contrast of less than 6 to 1 (WCAG 2.2, 1.4.3, requires 4.5).
const lowContrastScript = `(() => {
  const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const back = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const bad = [];
  let seen = 0;
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg') || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.tagName === 'NOSCRIPT' || !e.getClientRects().length) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(back(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    seen++;
    if (ratio < 6) bad.push(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2) + ': ' + e.textContent.slice(0, 30));
  }
  return seen < 5 ? 'only ' + seen + ' texts seen' : bad.slice(0, 5).join('; ');
})()`

func TestInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	dir := t.TempDir()
	var log strings.Builder
	for i := range 30 {
		fmt.Fprintf(&log, "2026-01-02 03:04:%02d.123456789  line %d of the log <b>bold</b>\n", i, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "current"), []byte(log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFakeHinit()
	states := []string{client.StateUp, client.StateUp, client.StateUp, client.StateBackoff, client.StateParked, client.StateDown}
	code := 78
	since := time.Now().Add(-time.Hour)
	for i := range 500 {
		s := client.Service{
			Name: fmt.Sprintf("gateway-%03d", i), Profile: fmt.Sprintf("%03d", i), State: states[i%len(states)], Want: client.WantUp, Since: since,
			Ready: i%6 == 0 || i%6 == 2, Restarts: i % 7, Reason: "exited with code 78", Log: filepath.Join(dir, "current"), Command: []string{"hermes", "gateway", "run"}, PID: 100 + i,
		}
		if s.State == client.StateParked {
			s.LastExit = &client.Exit{Code: &code, Cause: "config", EndedAt: since, Tail: []string{"no API key"}}
			s.Problem = "its configuration is wrong: <img src=x onerror=console.log('xss')>"
		}
		stat := fmt.Sprintf("%d (agent) S 1 %[1]d %[1]d 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 %d 0", s.PID, 20000+97*i)
		if err := errors.Join(os.MkdirAll(fmt.Sprint(dir, "/proc/", s.PID), 0o700), os.WriteFile(fmt.Sprint(dir, "/proc/", s.PID, "/stat"), []byte(stat), 0o600)); err != nil {
			t.Fatal(err)
		}
		f.services = append(f.services, s)
	}
	for i := range 12 {
		from, to := client.StateUp, client.StateBackoff
		if i%2 == 1 {
			from, to = to, from
		}
		f.events = append(f.events, client.Event{Seq: uint64(i + 1), At: time.Now().Add(time.Duration(i*3-50) * time.Minute), Service: "gateway-003", FromState: from, ToState: to})
	}
	var boards atomic.Pointer[string]
	text := boardsJSON
	boards.Store(&text)
	s := startTestSite(t, Options{Hinit: f, Token: testToken, Proc: func(client.Init) string { return dir + "/proc" }, Programs: Programs{Sandboxes: programPrinting(sandboxesJSON), Boards: func(context.Context, string) ([]byte, error) {
		return []byte(*boards.Load()), nil
	}}})
	b := newBrowser(t)
	b.setSize(1280, 800)

	// Log in with the keyboard alone. The field must have the focus.
	b.open(s.url + "/login")
	b.call(nil, "Input.insertText", map[string]any{"text": testToken})
	b.pressKey("Enter", 13, 0)
	b.waitFor(`document.querySelectorAll('#rows tr[data-name]').length === 500`)
	b.waitFor(`document.getElementById('live').textContent === 'live'`)

	// A change must appear on the page by itself.
	b.evalScript(`window.hit = new Promise((done) => new MutationObserver(() => {
	  const row = document.querySelector('[data-name="gateway-000"] .state');
	  if (row && row.textContent.includes('backoff')) done(Date.now());
	}).observe(document.getElementById('rows'), {childList: true, subtree: true})); 0`)
	changed := time.Now()
	f.change(func() { f.services[0].State = client.StateBackoff })
	at, _ := b.evalScript(`window.hit`).(float64)
	if took := time.UnixMilli(int64(at)).Sub(changed); took > testkit.Patience/4 {
		t.Errorf("a change took %v", took)
	} else {
		t.Logf("a change took %v", took)
	}

	// Type into the filter.
	b.evalScript(`document.getElementById('q').focus()`)
	b.call(nil, "Input.insertText", map[string]any{"text": "gateway-49"})
	b.waitFor(`[...document.querySelectorAll('#rows tr[data-name]')].filter((r) => !r.hidden).length === 10`)
	f.change(func() { f.services[490].Restarts = 1000 })
	b.waitFor(`document.querySelector('[data-name="gateway-490"]').textContent.includes('1000')`)

	// The list must have a heading for each profile, and then its usual groups again.
	choose := func(id, value string) {
		b.evalScript(fmt.Sprintf(`(() => { const o = document.getElementById(%q); o.value = %q; o.dispatchEvent(new Event('change')); })()`, id, value))
	}
	choose("by", "profile")
	b.waitFor(`[...document.querySelectorAll('#rows details')].filter((d) => !d.hidden).map((d) => d.dataset.key + [...d.querySelectorAll('tr[data-name]')].map((r) => r.dataset.name)).join() === '` +
		`490gateway-490,491gateway-491,492gateway-492,493gateway-493,494gateway-494,495gateway-495,496gateway-496,497gateway-497,498gateway-498,499gateway-499'`)
	choose("by", "")
	b.waitFor(`document.querySelectorAll('#rows details').length === 3 && document.querySelectorAll('#rows tr[data-name]').length === 500`)
	b.evalScript(`document.getElementById('q').focus()`)

	// Tab and Enter alone must lead from the filter to a service and its buttons. A change of the row must keep the focus.
	tabTo := func(what, script string) {
		t.Helper()
		for range 40 {
			if b.evalScript(`(() => { const e = document.activeElement; return `+script+`; })()`) == true {
				return
			}
			b.pressKey("Tab", 9, 0)
		}
		t.Fatalf("no tab leads to %s", what)
	}
	tabTo("the service", `e.textContent === 'gateway-490'`)
	f.change(func() { f.services[490].Restarts = 2000 })
	b.waitFor(`document.querySelector('[data-name="gateway-490"]').textContent.includes('2000')`)
	if b.evalScript(`document.activeElement.textContent`) != "gateway-490" {
		t.Error("a change of the row takes the focus away")
	}
	if b.evalScript(`getComputedStyle(document.activeElement).outlineStyle`) != "solid" {
		t.Error("the focus can't be seen")
	}
	b.pressKey("Enter", 13, 0)
	b.waitFor(`location.pathname === '/service/gateway-490' && document.readyState === 'complete'`)
	tabTo("the button", `e.textContent === 'Restart'`)
	b.pressKey("Enter", 13, 0)
	b.waitFor(`location.search === '?done=restart' && document.readyState === 'complete'`)
	if got := fmt.Sprint(f.orders()); got != "[restart gateway-490]" {
		t.Errorf("hinit was told %s", got)
	}
	if b.evalScript(`document.getElementById('log').textContent.includes('line 29 of the log <b>bold</b>')`) != true {
		t.Error("the log is not shown as it is")
	}

	// The board must reload without a click.
	b.open(s.url + "/boards")
	text2 := strings.Replace(boardsJSON, `"title":"build it"`, `"title":"build <b>more</b>"`, 1)
	boards.Store(&text2)
	b.waitFor(`document.querySelector('[data-again]').textContent.includes('build <b>more</b>')`)

	// All texts must be readable, light and dark, on a telephone and on a wall, and no page may be wider than a telephone.
	for _, dark := range []bool{false, true} {
		b.setDark(dark)
		word := map[bool]string{false: "light", true: "dark"}[dark]
		for name, path := range map[string]string{"list": "/", "service": "/service/gateway-004", "timeline": "/events", "login": "/login", "boards": "/boards", "sandboxes": "/sandboxes", "profiles": "/?by=profile&q=gateway-49", "log": "/service/gateway-004/log", "stop": "/service/gateway-004/stop"} {
			b.open(s.url + path)
			for _, width := range []int{360, 1280} {
				b.setSize(width, 800)
				if bad := b.evalScript(lowContrastScript); bad != "" {
					t.Errorf("%s, %s, %d wide: %v", name, word, width, bad)
				}
				if wide, _ := b.evalScript(`document.documentElement.scrollWidth`).(float64); int(wide) > width {
					t.Errorf("%s, %s: %v wide on a screen of %d", name, word, wide, width)
				}
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.problems) > 0 {
		t.Errorf("the console has: %s", strings.Join(b.problems, "\n"))
	}
}
