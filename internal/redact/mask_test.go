package redact_test

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hinit/internal/redact"
)

// randomToken returns text that looks like a token, the same for the same seed.
func randomToken(seed uint64, alphabet string, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

const (
	base62    = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	hexDigits = "0123456789abcdef"
)

// sampleTokens generates the tokens, so that no file of this repository contains text that looks like a secret.
func sampleTokens() map[string]string {
	jws := "eyJ" + randomToken(1, base62, 33) + ".eyJ" + randomToken(2, base62, 70) + "." + randomToken(3, base62+"-_", 43)
	return map[string]string{
		"openai": "sk-" + randomToken(4, base62, 48), "project": "sk-proj-" + randomToken(5, base62, 60) + "-" + randomToken(6, base62+"_", 60),
		"anthropic": "sk-ant-api03-" + randomToken(7, base62, 90) + "AA", "router": "sk-or-v1-" + randomToken(8, hexDigits, 64),
		"github": "ghp_" + randomToken(9, base62, 36), "server": "ghs_" + randomToken(10, base62, 36),
		"fine":      "github_pat_" + randomToken(11, base62, 22) + "_" + randomToken(12, base62, 59),
		"slack bot": "xoxb-" + randomToken(13, "0123456789", 12) + "-" + randomToken(14, "0123456789", 13) + "-" + randomToken(15, base62, 24),
		"slack app": "xapp-1-A" + randomToken(16, "0123456789ABCDEF", 10) + "-" + randomToken(17, hexDigits, 64),
		"aws":       "AKIA" + randomToken(18, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16), "google": "AIza" + randomToken(19, base62+"-_", 35),
		"face": "hf_" + randomToken(20, base62, 34), "groq": "gsk_" + randomToken(21, base62, 52), "gitlab": "glpat-" + randomToken(22, base62, 20),
		"jwt": jws, "telegram": "123456789:AA" + randomToken(23, base62+"-_", 33), "stripe": "sk_live_" + randomToken(24, base62, 24),
		"mail": "SG." + randomToken(25, base62, 22) + "." + randomToken(26, base62, 43), "npm": "npm_" + randomToken(27, base62, 36),
	}
}

func hideSecrets(text string, values ...string) string {
	var m redact.Masker
	return string(m.Hide([]byte(text), redact.NewSecrets(values)))
}

func TestTokensAreHidden(t *testing.T) {
	for name, token := range sampleTokens() {
		for _, around := range []string{
			"%s\n", "key=%s\n", `{"api_key":"%s","n":1}` + "\n", "export KEY='%s'; run\n", "a %s, and more\n", "https://h/p?token=%s&x=1\n",
			`"text":"first\n%s\nlast"` + "\n", "\x1b[31m%s\x1b[0m\n", "before\n%s\nafter\n", "(%s)\n", "%s.\n", "%s %[1]s\n",
		} {
			text := fmt.Sprintf(around, token)
			if token[:3] == "SG." && strings.HasPrefix(around, "%s.") || around == "" {
				continue
			}
			got := hideSecrets(text)
			if strings.Contains(got, token) || strings.Count(got, redact.Masked) != strings.Count(text, token) ||
				strings.ReplaceAll(text, token, redact.Masked) != got {
				t.Errorf("%s: %q became %q", name, text, got)
			}
		}
	}
	bearer := randomToken(30, base62, 32)
	for _, word := range []string{"Bearer", "bearer", "BEARER"} {
		if got, want := hideSecrets("Authorization: "+word+" "+bearer+"\n"), "Authorization: "+word+" ***\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got, want := hideSecrets("GET https://api.telegram.org/bot"+sampleTokens()["telegram"]+"/getMe 200\n"), "GET https://api.telegram.org/bot***/getMe 200\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPrivateKeysAreHidden(t *testing.T) {
	line := randomToken(31, base62+"+/", 64)
	key := "-----BEGIN RSA PRIVATE KEY-----\n" + line + "\n" + line + "\r\nshort==\n-----END RSA PRIVATE KEY-----\nnext line\n"
	want := "-----BEGIN RSA PRIVATE KEY-----\n***\n***\r\n***\n-----END RSA PRIVATE KEY-----\nnext line\n"
	var m redact.Masker
	got := ""
	for part := range strings.Lines(key) { // one line in each call, to check that the masker remembers the key
		got += string(m.Hide([]byte(part), nil))
	}
	if got != want || hideSecrets(key) != want {
		t.Errorf("got %q and %q, want %q", got, hideSecrets(key), want)
	}
	escaped := `{"key":"-----BEGIN PRIVATE KEY-----\n` + line + `\n` + line + `\n-----END PRIVATE KEY-----\n"}` + "\n"
	if got := hideSecrets(escaped); strings.Contains(got, line[:20]) || !strings.HasSuffix(got, `-----END PRIVATE KEY-----\n"}`+"\n") {
		t.Errorf("got %q", got)
	}
	for _, text := range []string{
		"it begins with -----BEGIN PRIVATE KEY----- and so on\nnext\n",
		"-----BEGIN CERTIFICATE-----\n" + line + "\n-----END CERTIFICATE-----\n",
	} {
		if got := hideSecrets(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestAKeyBetweenOtherOutputWasPartlyShown(t *testing.T) {
	line := randomToken(34, base62+"+/", 64)
	other := "INFO: another thread has " + "gh" + "p_" + randomToken(35, base62, 36) + "\n"
	key := "-----BEGIN PRIVATE KEY-----\n" + other + line + "\n" + other + other + line + "\n" + line[:8] + "\n" + other + "-----END PRIVATE KEY-----\n" + line + "\n"
	masked := "INFO: another thread has ***\n"
	want := "-----BEGIN PRIVATE KEY-----\n" + masked + "***\n" + masked + masked + "***\n***\n" + masked + "-----END PRIVATE KEY-----\n" + line + "\n"
	var m redact.Masker
	got := ""
	for part := range strings.Lines(key) {
		got += string(m.Hide([]byte(part), nil))
	}
	if got != want || hideSecrets(key) != want {
		t.Errorf("got %q and %q, want %q", got, hideSecrets(key), want)
	}
	endless := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("some text\n", redact.MaxKeyLines) + line + "\n"
	if got := hideSecrets(endless); got != endless {
		t.Error("a line long after a header without a footer is hidden")
	}
}

// Hide must mask a key in text without a newline at its end, such as an argument of a command, without a panic.
func TestAKeyInATextOfAnyLengthIsHidden(t *testing.T) {
	line := randomToken(32, base62+"+/", 64)
	key := "-----BEGIN PRIVATE KEY-----\n" + line + "\nshort==\n-----END PRIVATE KEY-----"
	for n := range len(key) + 1 {
		got := redact.HideText(key[:n])
		if strings.Contains(got, line[:20]) || n < 28 && got != key[:n] {
			t.Errorf("%q became %q", key[:n], got)
		}
		if all := string(new(redact.Masker).Hide([]byte(key[:n]), nil)); all != got {
			t.Errorf("%q became %q", key[:n], all)
		}
	}
}

func TestGivenValuesAreHidden(t *testing.T) {
	values := []string{"hunter2hunter2", "hunter2hunter2-and-more", "short", "p@ss w0rd!"}
	for text, want := range map[string]string{
		"user:hunter2hunter2@host\n": "user:***@host\n", "xhunter2hunter2x\n": "x***x\n", "hunter2hunter2-and-more\n": "***\n",
		"short and long\n": "short and long\n", "p@ss w0rd!p@ss w0rd!\n": "******\n", "hunter2hunter\n2\n": "hunter2hunter\n2\n",
	} {
		if got := hideSecrets(text, values...); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func goroot(t testing.TB) string {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// ordinaryText is text without secrets: the source of Go, and usual content of logs.
func ordinaryText(t testing.TB) []byte {
	var b bytes.Buffer
	root := filepath.Join(goroot(t), "src")
	for _, dir := range []string{"net/http", "runtime", "encoding", "os", "strings", "go/parser", "regexp", "archive"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			// Some tests of the standard library contain keys.
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") || b.Len() > 12<<20 {
				return err
			}
			text, err := os.ReadFile(path)
			b.Write(text)
			b.WriteByte('\n')
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(7, 7))
	raw := make([]byte, 3000)
	for i := range 2000 {
		for j := range raw {
			raw[j] = byte(r.Uint32())
		}
		sum := sha1.Sum(raw)
		hash := hex.EncodeToString(sum[:])
		uuid := hash[:8] + "-" + hash[8:12] + "-" + hash[12:16] + "-" + hash[16:20] + "-" + hash[20:32]
		fmt.Fprintf(&b, "commit %s\nMerge %s sk-%d into task-%s\n", hash, hash[:8], i, uuid)
		fmt.Fprintf(&b, "<img src=\"data:image/png;base64,%s\">\n%s\n", base64.StdEncoding.EncodeToString(raw), base64.URLEncoding.EncodeToString(raw[:60]))
		fmt.Fprintf(&b, "sha256:%s@%s digest: sha512-%s==\n", hash, hash, base64.StdEncoding.EncodeToString(raw[:64]))
		fmt.Fprintf(&b, "GET https://example.org/%s/%s?id=%s&page=%d#s-%d HTTP/1.1\" 200 %d \"-\" \"curl/8.5\"\n", uuid, hash[:10], uuid, i, i, i*7)
		fmt.Fprintf(&b, "goroutine %d [running]:\nmain.(*server).serve(0xc000%s, {0x%s, 0x%d})\n\t/src/sk-server/main.go:%d +0x%s\n", i, hash[:6], hash[:12], i, i, hash[:3])
		fmt.Fprintf(&b, "2026-11-21 00:11:%02d,%03d INFO gateway.run: Bearer authentication is on; bearer token-based-auth-v2-support %d:AAA 12345678:AA\n", i%60, i%1000, i)
		fmt.Fprintf(&b, "/opt/data/sk-learn-something-with-a-long-name-%d/hf_hub_download_of_something_long/npm_package_version_of_a_thing/ghp_x\n", i)
		fmt.Fprintf(&b, "0:00:00 %d%% |%s| eyJ is how a token begins; xoxb- too, AKIA and AIza\n", i%100, strings.Repeat("#", i%80))
		fmt.Fprintf(&b, "{\"model\":\"sk-none\",\"monkey\":\"key_%s\",\"risk-assessment-2026-11-21-final-version\":%d}\n", hash[:10], i)
	}
	return b.Bytes()
}

func TestOrdinaryTextIsNotHidden(t *testing.T) {
	text := ordinaryText(t)
	if len(text) < 10<<20 {
		t.Errorf("%d bytes are too few to prove anything", len(text))
	}
	var m redact.Masker
	got := m.Hide(text, redact.NewSecrets([]string{"hunter2hunter2", "a passphrase of many words"}))
	if &got[0] == &text[0] {
		return
	}
	was := bytes.Split(text, []byte{'\n'})
	for i, line := range bytes.Split(got, []byte{'\n'}) {
		if !bytes.Equal(line, was[i]) {
			t.Errorf("%.300q became %.300q", was[i], line)
		}
	}
}

func FuzzMask(f *testing.F) {
	f.Add("sk-"+randomToken(4, base62, 48)+"\n-----BEGIN PRIVATE KEY-----", "abcdefgh", 3)
	f.Add("-----BEGIN PRIVATE KEY-----\nabcd\n\n-----END", "abcdefgh", 40)
	f.Add("12345678:AA"+randomToken(23, base62, 33)+"\x1b[\\n\\", ":AA", 1)
	f.Fuzz(func(t *testing.T, text, value string, cut int) {
		text += "\n"
		set := redact.NewSecrets([]string{value})
		var whole, parts redact.Masker
		got := string(whole.Hide([]byte(text), set))
		if strings.Count(got, "\n") != strings.Count(text, "\n") || !strings.HasSuffix(got, "\n") {
			t.Fatalf("%q became %q", text, got)
		}
		if len(value) >= 8 && !strings.Contains(value, "*") && !strings.Contains(value, "\n") &&
			strings.Contains(got, value) && !strings.Contains(text, "KEY-----") && len(splitAtMasked(got)) == 0 {
			t.Fatalf("%q still has %q", got, value)
		}
		// The division of the lines into batches must not matter.
		at := strings.IndexByte(text[max(0, min(cut, len(text)-1)):], '\n') + 1 + max(0, min(cut, len(text)-1))
		again := string(parts.Hide([]byte(text[:at]), set))
		if at < len(text) {
			again += string(parts.Hide([]byte(text[at:]), set))
		}
		if again != got {
			t.Fatalf("%q became %q and, cut at %d, %q", text, got, at, again)
		}
	})
}

func splitAtMasked(text string) []string { return strings.Split(text, redact.Masked)[1:] }

// BenchmarkMask measures the cost for each byte, which the page on the log path states.
func BenchmarkMask(b *testing.B) {
	set := redact.NewSecrets([]string{"hunter2hunter2", "a passphrase of many words"})
	var secret []string
	for _, token := range sampleTokens() {
		secret = append(secret, token)
	}
	slices.Sort(secret)
	for _, text := range []struct {
		name string
		text []byte
	}{
		{"the text of this repository", ordinaryText(b)},
		{"one letter", bytes.Repeat(append(bytes.Repeat([]byte{'x'}, 99), '\n'), 10_000)},
		{"lines of a log", bytes.Repeat([]byte("2026-11-21 05:00:01,123 INFO gateway.session: message 48213 from 77120054 handled in 1.284s tokens=1893 model=large-4\n"), 10_000)},
		{"lines of JSON", bytes.Repeat([]byte(`{"level":"info","ts":"2026-11-21T05:00:01.123Z","logger":"gateway","msg":"handled","chat":77120054,"ms":1284}`+"\n"), 10_000)},
		{"nothing but tokens", bytes.Repeat([]byte(strings.Join(secret, "\n")+"\n"), 500)},
	} {
		b.Run(text.name, func(b *testing.B) {
			b.SetBytes(int64(len(text.text)))
			b.ReportAllocs()
			for b.Loop() {
				for chunk := range slices.Chunk(text.text, 64<<10) {
					var m redact.Masker
					m.Hide(chunk, set)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(text.text)), "ns/byte")
		})
	}
}

// Many secrets with the same beginning must be masked quickly. Otherwise an agent could keep a processor of PID 1 busy with
// lines that repeat this beginning.
func TestSecretsThatBeginAlikeAreHiddenAsBefore(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(least, limit int) string {
		b := make([]byte, least+r.IntN(limit-least))
		for i := range b {
			b[i] = "xy"[r.IntN(2)]
		}
		return string(b)
	}
	for range 2000 {
		var values []string
		for range r.IntN(12) {
			values = append(values, word(8, 14))
		}
		text := word(0, 60)
		want := ""
		for i := 0; i < len(text); {
			longest := ""
			for _, v := range values {
				if len(v) > len(longest) && strings.HasPrefix(text[i:], v) {
					longest = v
				}
			}
			if longest == "" {
				want, i = want+text[i:i+1], i+1
			} else {
				want, i = want+redact.Masked, i+len(longest)
			}
		}
		if got := string(new(redact.Masker).Hide([]byte(text+"\n"), redact.NewSecrets(values))); got != want+"\n" {
			t.Fatalf("%q without %q is %q, want %q", text, values, got, want)
		}
	}
}

func TestLinesThatAreLikeALongSecretAreHiddenWhole(t *testing.T) {
	set := redact.NewSecrets([]string{strings.Repeat("x", 8000) + "y"})
	line := "begin " + strings.Repeat("x", 7000) + "\n"
	got := string(new(redact.Masker).Hide([]byte("first\n"+strings.Repeat(line, 10)+"last\n"), set))
	if !strings.HasPrefix(got, "first\nbegin x") || !strings.HasSuffix(got, "begin "+redact.Masked+"\nlast\n") {
		t.Errorf("%d bytes: %.50q … %q", len(got), got, got[max(0, len(got)-50):])
	}
}

// Secrets that each begin with the previous one must be masked in lines that match nearly all of them. The search for a shorter
// match then has many steps.
func TestLinesThatAreLikeAChainOfSecretsAreHidden(t *testing.T) {
	var values []string
	for n := 8; n <= 180; n++ {
		values = append(values, strings.Repeat("x", n))
	}
	got := string(new(redact.Masker).Hide([]byte(strings.Repeat("xxxxxxxy", 8<<10)+"\n"), redact.NewSecrets(values)))
	if !strings.HasPrefix(got, "xxxxxxxy") || !strings.HasSuffix(got, redact.Masked+"\n") || len(got) > 16<<10 {
		t.Errorf("%d bytes: %.50q … %q", len(got), got, got[max(0, len(got)-50):])
	}
}

func BenchmarkSecretsThatBeginAlike(b *testing.B) {
	prefix := strings.Repeat("x", 55)
	var values []string
	for i := range 256 {
		values = append(values, fmt.Sprintf("%s%06d", prefix, i))
	}
	set, line := redact.NewSecrets(values), []byte(strings.Repeat("x", 64<<10)+"\n")
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		new(redact.Masker).Hide(line, set)
	}
}

// A private key in a log file must be masked, although each of its lines begins with a time. The page, the forwarder and the
// support bundle read such files, and would show the key.
func TestAPrivateKeyInALogFileWasShown(t *testing.T) {
	line := randomToken(33, base62+"+/", 64)
	text := ""
	for i, part := range []string{"-----BEGIN EC PRIVATE KEY-----", line, "", "  " + line + "\r", line[:6] + "==", "-----END EC PRIVATE KEY-----", line} {
		text += fmt.Sprintf("2026-01-02 03:04:05.12345678%d  %s\n", i, part)
	}
	want := strings.Replace(strings.ReplaceAll(text, line, redact.Masked), line[:6]+"==", redact.Masked, 1)
	want = strings.TrimSuffix(want, redact.Masked+"\n") + line + "\n"
	if got := hideSecrets(text); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, stamp := range []string{"2026-01-02 03:04:05.12345678  ", "2026-01-02 03:04:05.123456789 "} {
		text := "-----BEGIN PRIVATE KEY-----\n" + stamp + line + "\n"
		if got := hideSecrets(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
