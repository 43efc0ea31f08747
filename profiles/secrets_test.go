package profiles

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"hinit/internal/dotenv"
)

func TestSecretsOfAProfile(t *testing.T) {
	got, _ := secretsIn(dotenv.Parse("# A_TOKEN=of-a-comment\nPLAIN=not-a-secret\nAPI_KEY=abcdefgh1\r\nexport BOT_TOKEN = 'quoted # one' # why\n" +
		"DB_PASSWORD=\"with \\\"quotes\\\"\"\nSHORT_KEY=1234567\nMAX_TOKENS=100000000\nSECRET_FILE=/run/secrets/one\n" +
		"OTHER_SECRET=plain-value # and a remark\nNO_TOKEN=disabled\nTLS_KEY=\"first line of it\nsecond line of it\n\"\n" +
		"DB_PASS=by-its-last-word\nDATABASE_URL=postgres://me:in-a-url-1@db/x\nONE_KEY=\"open-ended\nLAST_KEY=abcdefgh1\nNOTHING_KEY=\nnonsense\nEND_KEY=last-value"))
	want := []string{
		"abcdefgh1", "quoted # one", `with \"quotes\"`, `with "quotes"`, "plain-value", "first line of it", "second line of it",
		"by-its-last-word", "in-a-url-1", "open-ended", "last-value",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestSecretsAreReadSafely(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "profiles/coder/SOUL.md", "")
	home := filepath.Join(s.root, "profiles", "coder")
	if got, _, err := s.Secrets("coder"); err != nil || len(got) != 0 {
		t.Errorf("without a file: %q, %v", got, err)
	}
	elsewhere := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(elsewhere, []byte("A_KEY=of-somebody-else\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(home, ".env")); err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.Secrets("coder"); err == nil {
		t.Errorf("through a link: %q", got)
	}
	if err := os.Remove(filepath.Join(home, ".env")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".env"), []byte("A_KEY=abcdefgh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.Secrets("coder"); err != nil || !slices.Equal(got, []string{"abcdefgh"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestAFileOfSecretsTakesLittleMemory checks that PID 1 needs little memory for a profile's
// secrets, which the agent writes.
func TestAFileOfSecretsTakesLittleMemory(t *testing.T) {
	var text strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&text, "KEY_%d_TOKEN=\"value-%d\n", i, i) // The opening quote is never closed.
	}
	got, more := secretsIn(dotenv.Parse(text.String()))
	if len(got) != maxSecrets || !more {
		t.Errorf("%d values, more %t", len(got), more)
	}
	if got, more := secretsIn(dotenv.Parse("A_KEY=" + strings.Repeat("x", maxSecretBytes+1))); len(got) != 0 || !more {
		t.Errorf("%d values of a long one, more %t", len(got), more)
	}
}

// TestATokenKeepsNoFileInMemory checks that a token's name does not keep the whole .env in memory.
func TestATokenKeepsNoFileInMemory(t *testing.T) {
	s := NewVolume(t)
	const profiles = 30
	for i := range profiles {
		text := "A_BOT_TOKEN=12345:abcdef\n# " + strings.Repeat("x", maxInputSize/2) + "\n" + strings.Repeat("B", maxInputSize/3) + "_BOT_TOKEN=12345:abcdef\n"
		Write(t, s, fmt.Sprintf("profiles/p%d/.env", i), text)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var kept [profiles][]ExclusiveValue
	for i := range kept {
		kept[i], _ = s.ExclusiveValues(fmt.Sprint("p", i))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if len(kept[0]) != 1 || kept[0][0].Name != "A_BOT_TOKEN" {
		t.Errorf("%d tokens", len(kept[0]))
	}
	if used := int64(after.HeapAlloc-before.HeapAlloc) >> 10; used > 1024 {
		t.Errorf("the names of the tokens of %d profiles keep %d KB", len(kept), used)
	}
	runtime.KeepAlive(kept)
}

// TestHinitRanOutOfMemoryAfterTheAgentWroteManyVariables checks that 4 MiB of variables in each of
// 20 homes need little memory and time.
func TestHinitRanOutOfMemoryAfterTheAgentWroteManyVariables(t *testing.T) {
	s := NewVolume(t)
	homes := []string{Default}
	for i := range 20 {
		homes = append(homes, fmt.Sprint("p", i))
		Write(t, s, filepath.Join("profiles", homes[i+1], ".env"), strings.Repeat("1=\n", maxInputSize/3))
	}
	Write(t, s, ".env", "API_SERVER_PORT=8642\n"+strings.Repeat("# a remark\n", maxVariableLines-1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	read := make(map[string]map[string]string)
	err := s.EachEnv(homes, func(profile string, vars map[string]string) { read[profile] = vars })
	runtime.ReadMemStats(&after)
	if want := map[string]map[string]string{Default: {"API_SERVER_PORT": "8642"}}; err != nil || !reflect.DeepEqual(read, want) {
		t.Errorf("read %d, %v", len(read), err)
	}
	if taken := (after.TotalAlloc - before.TotalAlloc) >> 20; taken > 60 {
		t.Errorf("looking for a port took %d MB", taken)
	}
	_, _, err = s.Secrets("p1")
	_, err2 := s.ExclusiveValues("p1")
	if want := "/profiles/p1/.env\": it has more than 10000 lines"; err == nil || err2 == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, %v, want %s", err, err2, want)
	}
}
