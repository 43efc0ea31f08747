package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"hinit/client"
)

// paymentServices returns three services: two in the group pay, and one in the group payments, whose name also begins with "pay".
func paymentServices() []client.Service {
	a, b, c := coderGateway(), coderGateway(), coderGateway()
	a.Name, a.Group = "pay-in", "pay"
	b.Name, b.Group = "pay-out", "pay"
	c.Name, c.Group = "salary", "payroll"
	return []client.Service{a, b, c, coderGateway()}
}

// A command for a group must reach only its services, work with plain forms, and ask before a stop.
func TestTheOrderForAGroupReachesItsServicesOnly(t *testing.T) {
	f := newFakeHinit(paymentServices()...)
	s := startTestSite(t, Options{Hinit: f, Token: testToken})
	s.request("POST", "/login", url.Values{"token": {testToken}})
	_, page := s.request("GET", "/?by=group", nil)
	for _, part := range []string{`data-key="pay"><summary><a href="/group/pay">@pay</a> <b>2</b>`, `@payroll</a> <b>1</b>`, `no group <b>1</b>`, `data-g="payroll"`} {
		if !strings.Contains(page, part) {
			t.Errorf("the groups have no %s:\n%s", part, page)
		}
	}
	_, page = s.request("GET", "/group/pay", nil)
	if strings.Count(page, "<tr data-name=") != 2 || !strings.Contains(page, "<h1>@pay</h1>") || !strings.Contains(page, `action="/group/pay/restart"`) {
		t.Errorf("the page of a group:\n%s", page)
	}
	form := url.Values{}
	if code, text := s.request("POST", "/group/pay/restart", form); code != http.StatusSeeOther || !strings.HasSuffix(text, " to /group/pay?done=restart") {
		t.Errorf("a restart: %d %s", code, text)
	}
	if _, text := s.request("GET", "/group/pay/stop", nil); !strings.Contains(text, "pay-in, pay-out: down until somebody starts it") || !strings.Contains(text, `action="/group/pay/stop"`) {
		t.Errorf("the question before a stop:\n%s", text)
	}
	s.request("POST", "/group/pay/stop", form)
	if got := fmt.Sprint(f.orders()); got != "[restart pay-in restart pay-out stop pay-in stop pay-out]" {
		t.Errorf("hinit was told %s", got)
	}
	if _, text := s.request("GET", "/group/pay?done=stop", nil); !strings.Contains(text, `action="/group/pay/start"><button>Undo`) {
		t.Errorf("a stop of a group has no undo:\n%s", text)
	}
	for _, path := range []string{"/group/none", "/group/none/stop"} {
		if code, _ := s.request("GET", path, nil); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := s.request("POST", "/group/none/stop", form); code != http.StatusNotFound {
		t.Errorf("an order for no group: %d", code)
	}
	if code, _ := s.request("POST", "/group/pay/stop", form, "Sec-Fetch-Site", "cross-site"); code != http.StatusForbidden {
		t.Errorf("an order for a group from another site: %d", code)
	}
}

// The page of a group without buttons must say that HINIT_WEB_TOKEN_FILE is missing.
func TestAGroupWithoutButtonsShowsTheReason(t *testing.T) {
	f := newFakeHinit(paymentServices()...)
	s := startTestSite(t, Options{Hinit: f})
	if _, text := s.request("GET", "/group/pay", nil); !strings.Contains(text, "set HINIT_WEB_TOKEN_FILE") || strings.Contains(text, "/group/pay/restart") {
		t.Errorf("%s", text)
	}
	if code, _ := s.request("POST", "/group/pay/stop", url.Values{}); code != http.StatusForbidden || len(f.orders()) != 0 {
		t.Errorf("%d, told %q", code, f.orders())
	}
}

// TestGroupsInABrowser checks that a folded group stays folded, that @NAME filters exactly, and that the palette sends
// a command to a group.
func TestGroupsInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	f := newFakeHinit(paymentServices()...)
	s := startTestSite(t, Options{Hinit: f, Token: testToken})
	b := newBrowser(t)
	b.setSize(1280, 800)
	b.open(s.url + "/login")
	b.call(nil, "Input.insertText", map[string]any{"text": testToken})
	b.pressKey("Enter", 13, 0)
	b.waitFor(`document.querySelectorAll('#rows tr[data-name]').length === 4`)
	b.evalScript(`(() => { const o = document.getElementById('by'); o.value = 'group'; o.dispatchEvent(new Event('change')); })()`)
	const heads = `[...document.querySelectorAll('#rows summary')].map((s) => s.textContent.trim()).join()`
	b.waitFor(heads + ` === '@pay 2,@payroll 1,no group 1'`)
	b.evalScript(`document.querySelector('details[data-key="pay"] summary b').click()`)
	b.waitFor(`!document.querySelector('details[data-key="pay"]').open`)
	f.change(func() { f.services[0].State, f.services[0].Problem = client.StateBackoff, "it is broken" })
	b.waitFor(`document.querySelector('[data-name="pay-in"]').className.startsWith('bad') && !document.querySelector('details[data-key="pay"]').open`)
	b.waitFor(`document.querySelector('details[data-key="pay"] summary').textContent.includes('1 in trouble')`)
	b.open(s.url + "/?by=group")
	b.waitFor(`!document.querySelector('details[data-key="pay"]').open && document.querySelector('details[data-key="pay"] summary').textContent.includes('1 in trouble')`)
	b.evalScript(`document.getElementById('q').focus()`)
	b.call(nil, "Input.insertText", map[string]any{"text": "@pay"})
	b.waitFor(`[...document.querySelectorAll('#rows tr[data-name]')].filter((r) => !r.hidden).map((r) => r.dataset.name).join() === 'pay-in,pay-out'`)
	b.evalScript(`document.getElementById('find').click()`)
	b.waitFor(`!!document.getElementById('palette')`)
	b.waitFor(`(() => { const i = document.querySelector('#palette input'); i.value = 'restart @pay'; i.dispatchEvent(new Event('input')); return document.querySelector('#palette li').textContent === 'restart @pay'; })()`)
	b.pressKey("Enter", 13, 0)
	b.waitFor(`location.pathname === '/group/pay' && document.body.textContent.includes('It was told to restart.')`)
	if got := fmt.Sprint(f.orders()); got != "[restart pay-in restart pay-out]" {
		t.Errorf("hinit was told %s", got)
	}
}
