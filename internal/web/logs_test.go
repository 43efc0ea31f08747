package web

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/fsutil"
	"hinit/internal/redact"
)

// The page must follow no link of the agent in the path of a log. The agent owns the directory of the logs and can put links to
// root's directory into it.
func TestThePageOfRootShowsNoFileOfRootThroughALinkOfTheAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to read as somebody else")
	}
	agent := fsutil.NewActor(fsutil.Identity{UID: 10000, GID: 10000})
	dir := t.TempDir()
	secret, home := filepath.Join(dir, "secret"), filepath.Join(dir, "home")
	text := []byte("2026-01-02 03:04:05.123456789  precious\n")
	for _, err := range []error{
		os.Chmod(filepath.Dir(dir), 0o755), os.MkdirAll(secret+"/gateways/coder", 0o755), os.MkdirAll(secret+"/coder", 0o755),
		os.WriteFile(secret+"/gateways/coder/current", text, 0o600), os.WriteFile(secret+"/coder/current", text, 0o600),
		os.MkdirAll(home+"/logs", 0o755), os.Chown(home, 10000, 10000), os.Chown(home+"/logs", 10000, 10000),
		agent.Do(func() error { return os.Symlink(secret, home+"/logs/gateways") }),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	v := coderGateway()
	v.Log = home + "/logs/gateways/coder/current"
	s := startTestSite(t, Options{Hinit: newFakeHinit(v), LogReader: func(client.Init) (*fsutil.Actor, error) { return agent, nil }})
	look := func(link string) {
		t.Helper()
		for _, path := range []string{"/service/gateway-coder", "/service/gateway-coder?archives=1&q=pre"} {
			if code, page := s.request("GET", path, nil); code != http.StatusOK || strings.Contains(page, "precious") {
				t.Errorf("a link at %s: %s answers %d\n%s", link, path, code, page)
			}
		}
	}
	look("logs/gateways")
	if err := agent.Do(func() error {
		return os.Rename(home+"/logs", home+"/moved")
	}); err != nil {
		t.Fatal(err)
	}
	if err := agent.Do(func() error { return os.Symlink(secret, home+"/logs") }); err != nil {
		t.Fatal(err)
	}
	look("logs")
}

// The page of a log must cut long lines. Lines of 16 KB would make a page of a hundred megabytes in the memory of hinit-web.
func TestAnAgentWithHugeLinesMakesNoHugePage(t *testing.T) {
	dir := t.TempDir()
	line := "2026-01-02 03:04:05.123456789  INFO begin " + strings.Repeat("x", 15<<10) + "\n"
	if err := os.WriteFile(dir+"/current", []byte(strings.Repeat(line, 290)+"2026-01-02 03:04:06.123456789  the last one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func(was time.Duration) { searchTimeout = was }(searchTimeout)
	searchTimeout = time.Minute
	v := coderGateway()
	v.Log = dir + "/current"
	s := startTestSite(t, Options{Hinit: newFakeHinit(v), LogReader: func(client.Init) (*fsutil.Actor, error) { return fsutil.ProcessActor(), nil }})
	code, page := s.request("GET", "/service/gateway-coder/log?n=2000", nil)
	if lines := strings.Count(page, "INFO begin "); code != http.StatusOK || len(page) > 6*maxBytes || lines < 100 {
		t.Errorf("%d: %d bytes with %d lines", code, len(page), lines)
	}
	for _, want := range []string{"the last one", "The lines are too long for one page"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

// Unread downloads must leave the operator a turn to search logs. Otherwise four downloads of an agent would block all
// searches.
func TestDownloadsThatAreNotReadLeaveSearchesForTheOperator(t *testing.T) {
	dir := t.TempDir()
	line := "2026-01-02 03:04:05.123456789  INFO begin " + strings.Repeat("x", 15<<10) + "\n"
	// The operator's search reads the last, short lines: long lines take seconds on a busy machine.
	short := strings.Repeat("2026-01-02 03:04:06.123456789  INFO short\n", redact.MaxKeyLines) + "2026-01-02 03:04:06.123456789  the last one\n"
	if err := os.WriteFile(dir+"/current", []byte(strings.Repeat(line, 2000)+short), 0o600); err != nil {
		t.Fatal(err)
	}
	v := coderGateway()
	v.Log = dir + "/current"
	s := startTestSite(t, Options{Hinit: newFakeHinit(v)})
	for range 4 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/service/gateway-coder/download", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r) // RoundTrip returns when the download has begun, and nothing reads the download
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
	}
	if code, page := s.request("GET", "/service/gateway-coder/log?n=1", nil, "By-Socket", "1"); code != http.StatusOK || !strings.Contains(page, "the last one") {
		t.Errorf("the operator's search is answered with %d, %.2000s", code, page)
	}
}

// A shortened text must not end in the beginning of a secret. The beginning alone does not look like a secret, so it would not
// be masked.
func TestTheBeginningOfASecretAtTheEndOfAShortenedTextIsHidden(t *testing.T) {
	secret := " ghp_" + strings.Repeat("a1", 18)
	if text := oneLine(strings.Repeat("x", maxText-15) + secret); strings.Contains(text, "ghp_") {
		t.Error(text)
	}
	line, _ := new(logSearch).parseMatch([]byte(strings.Repeat("x", maxLine-15) + secret))
	if strings.Contains(line.Text, "ghp_") {
		t.Error(line.Text[maxLine-20:])
	}
}

// The page must hide the lines of a private key even if the header of the key is above the shown lines. It must also hide them
// in the last lines before an exit.
func TestTheLinesOfAPrivateKeyWereShown(t *testing.T) {
	body := strings.Repeat("aB3/", 16)
	key := slices.Concat([]string{"-----BEGIN RSA PRIVATE KEY-----"}, slices.Repeat([]string{body}, 25), []string{"-----END RSA PRIVATE KEY-----"})
	dir := t.TempDir()
	text := ""
	for _, line := range append(slices.Clone(key), slices.Repeat([]string{"later"}, defaultLines-10)...) {
		text += "2026-01-02 03:04:05.123456789  " + line + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "current"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	v := coderGateway()
	v.Log, v.LastExit = filepath.Join(dir, "current"), &client.Exit{Tail: append(key, "\x1b[31mbye\x1b[0m")}
	s := startTestSite(t, Options{Hinit: newFakeHinit(v)})
	for _, path := range []string{"/service/gateway-coder", "/service/gateway-coder/log"} {
		code, page := s.request("GET", path, nil)
		if code != http.StatusOK || strings.Contains(page, body[:20]) || strings.Count(page, "later\n") != defaultLines-10 {
			t.Errorf("%s: %d, %d lines, the key at %d: %s", path, code, strings.Count(page, "later\n"), strings.Index(page, body[:20]), page)
		}
		if path == "/service/gateway-coder" && !strings.Contains(page, "bye") {
			t.Errorf("the last line is missing: %s", page)
		}
	}
}
