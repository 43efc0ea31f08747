package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hinit/internal/cmdline"
)

// The filter of the page must take the same patterns as hinit restart.
func TestThePageTakesThePatternsOfTheCommandLine(t *testing.T) {
	services := paymentServices()
	for i := range services {
		services[i].Profile = strings.TrimPrefix(services[i].Name, "gateway-")
	}
	f := newFakeHinit(services...)
	s := startTestSite(t, Options{Hinit: f, Token: testToken})
	b := (*browser)(nil)
	if !testing.Short() {
		b = newBrowser(t)
		b.setSize(1280, 800)
		b.open(s.url + "/login")
		b.call(nil, "Input.insertText", map[string]any{"text": testToken})
		b.pressKey("Enter", 13, 0)
		b.waitFor(`document.querySelectorAll('#rows tr[data-name]').length === 4`)
	}
	s.request("POST", "/login", map[string][]string{"token": {testToken}})
	for _, word := range []string{"p*", "pay-*", "*-out", "cod?r", "[ps]a*", "gateway-*", "@pay", "@payroll", "@", "[", "*"} {
		var want []string
		for i := range services {
			if cmdline.SelectsService(word, &services[i]) {
				want = append(want, services[i].Name)
			}
		}
		_, page := s.request("GET", "/?by=none&q="+strings.NewReplacer("@", "%40", "[", "%5B", "?", "%3F").Replace(word), nil)
		var got []string
		for part := range strings.SplitSeq(page, `<tr data-name="`) {
			if name, _, is := strings.Cut(part, `"`); is && !strings.HasPrefix(part, "<") {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q finds %q without scripts, and %q on the command line", word, got, want)
		}
		if b != nil {
			b.evalScript(fmt.Sprintf(`(() => { const q = document.getElementById('q'); q.value = %q; q.dispatchEvent(new Event('input')); })()`, word))
			b.waitFor(fmt.Sprintf(`[...document.querySelectorAll('#rows tr[data-name]')].filter((r) => !r.hidden).map((r) => r.dataset.name).sort().join() === %q`, strings.Join(want, ",")))
		}
	}
	if b == nil {
		return
	}
	// The filter must also apply to a later service.
	b.evalScript(`(() => { const q = document.getElementById('q'); q.value = 'pay-*'; q.dispatchEvent(new Event('input')); })()`)
	f.change(func() {
		late := coderGateway()
		late.Name = "pay-late"
		f.services = append(f.services, late)
	})
	b.waitFor(`[...document.querySelectorAll('#rows tr[data-name]')].filter((r) => !r.hidden).map((r) => r.dataset.name).sort().join() === 'pay-in,pay-late,pay-out'`)
}
