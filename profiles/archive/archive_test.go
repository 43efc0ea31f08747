package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"

	"hinit/internal/testkit"
	"hinit/profiles/archive"
)

// bin is the directory of the tested programs.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "archive")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		bin = dir
		// Exports in this process close database files that the test's gateway has open. OFD locks survive
		// that.
		if _, err := sqlite.OFDLocking(true); err != nil {
			panic(err)
		}
		// Some tests wait for half a minute, so run them in parallel.
		flag.Parse()
		_ = flag.Set("test.parallel", "8")
		if err := errors.Join(os.Chmod(dir, 0o755), testkit.Build(dir, "hinit", "hinit-profile")); err != nil { //nolint:gosec // other users run these programs
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// backup copies a database with the product's program.
func backup(ctx context.Context, from, to *os.File, name string) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", from.Fd()))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "hinit-profile"), name, "/proc/self/fd/3")
	cmd.Dir, cmd.ExtraFiles = path, []*os.File{to}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o640)); err != nil {
		t.Fatal(err)
	}
}

// newDatabase creates a database in WAL mode with two accounts, which hold 100 together.
func newDatabase(t testing.TB, path string) *sql.DB {
	t.Helper()
	db := must(sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)"))(t)
	t.Cleanup(func() { _ = db.Close() })
	must(db.Exec("CREATE TABLE accounts (name TEXT, money INTEGER); INSERT INTO accounts VALUES ('a', 100), ('b', 0)"))(t)
	return db
}

// transferMoney moves money from one account to the other.
func transferMoney(db *sql.DB, n int) error {
	_, err := db.Exec("BEGIN IMMEDIATE; UPDATE accounts SET money = money - ?1 WHERE name = 'a'; UPDATE accounts SET money = money + ?1 WHERE name = 'b'; COMMIT", n)
	return err
}

// accountSum returns the sum of the accounts in a database.
func accountSum(t testing.TB, path string) (n int) {
	t.Helper()
	db := must(sql.Open("sqlite", "file:"+path))(t)
	defer db.Close()
	verdict := ""
	if err := errors.Join(db.QueryRow("PRAGMA integrity_check").Scan(&verdict), db.QueryRow("SELECT sum(money) FROM accounts").Scan(&n)); err != nil || verdict != "ok" {
		t.Fatal(path, verdict, err)
	}
	return n
}

// newHome creates a home with files of each kind.
func newHome(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "coder")
	for name, text := range map[string]string{
		"SOUL.md": "soul", ".env": "OPENAI_API_KEY=sk-1\nTELEGRAM_BOT_TOKEN=1:a\nAPI_SERVER_PORT=8642\n", "auth.json": "{}", "config.yaml": "model: x\n",
		"gateway.pid": "{}", "gateway_state.json": `{"desired_state":"running"}`, ".hinit-reserve": "x", ".hinit-intent.json": "{}", "sessions/a/b/c": "deep", "empty": "",
		"workspace/key.go": "package key", "workspace/client_secret.json": "{}", ".ssh/config": "x", "platforms/pairing/telegram.json": "{}",
		"long/" + strings.Repeat("n", 200) + "/" + strings.Repeat("ü", 100): "long",
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	for name, target := range map[string]string{"inside": "sessions/a", "workspace/up": "../SOUL.md", "out": "/etc/passwd", "above": "../x", "sly": "sessions/../../x"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, "config.yaml"), 0o444), os.Chtimes(filepath.Join(dir, "SOUL.md"), time.Now(), time.Unix(1e9, 12345))); err != nil {
		t.Fatal(err)
	}
	if err := newDatabase(t, filepath.Join(dir, "state.db")).Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// treeListing describes a tree: names, kinds, modes, times and content of files.
func treeListing(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case d.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(path)
			text += " " + target
		case d.Type().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(content)
			text += fmt.Sprintf(" %x %d", sum[:4], info.ModTime().UnixNano())
		}
		all[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func exportHome(t testing.TB, x archive.Export) (*bytes.Buffer, archive.Head, string) {
	t.Helper()
	var out bytes.Buffer
	x.Name, x.Backup = "coder", backup
	head, sum, kept, err := x.Run(t.Context(), &out)
	if err != nil || kept != x.KeepSnapshot {
		t.Fatal(kept, err)
	}
	return &out, head, sum
}

func importHome(t testing.TB, in io.Reader) string {
	t.Helper()
	dir := t.TempDir()
	if _, _, err := (&archive.Import{Dir: dir, Name: "two", Marker: "SOUL.md"}).Run(in); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "two")
}

func TestAProfileComesBackFromItsArchive(t *testing.T) {
	from := newHome(t)
	out, head, sum := exportHome(t, archive.Export{Home: from, IncludeSecrets: true})
	dir := t.TempDir()
	_, got, err := (&archive.Import{Dir: dir, Name: "two", Marker: "SOUL.md"}).Run(out)
	if err != nil || got != sum {
		t.Fatal(err, got, sum)
	}
	want, have := treeListing(t, from), treeListing(t, filepath.Join(dir, "two"))
	for _, name := range []string{"gateway.pid", "gateway_state.json", ".hinit-reserve", ".hinit-intent.json", "out", "above", "sly"} {
		delete(want, name)
	}
	// A copy of a database has the same rows, but other bytes.
	for _, name := range []string{"state.db", "state.db-wal", "state.db-shm"} {
		delete(want, name)
		delete(have, name)
	}
	for name, text := range want {
		if have[name] != text {
			t.Errorf("%s is %q in the place of %q", name, have[name], text)
		}
	}
	if len(have) != len(want) || accountSum(t, filepath.Join(dir, "two/state.db")) != 100 || head.Moment != archive.Consistent {
		t.Errorf("%d files in the place of %d; %+v", len(have), len(want), head)
	}
	if left := must(filepath.Glob(dir + "/.*"))(t); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
	if _, err := os.Lstat(from + "/.hinit-export"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the snapshot is left: %v", err)
	}
	names := head.LeftOut["link that leads out of the profile"]
	if slices.Sort(names); !slices.Equal(names, []string{"above", "out", "sly"}) {
		t.Errorf("left out: %+v", head.LeftOut)
	}
}

// TestAHomeThatHoldsStillIsSentAsItIs checks that an idle home is archived without a copy, and that
// a second archive has the same bytes.
func TestAHomeThatHoldsStillIsSentAsItIs(t *testing.T) {
	dir := newHome(t)
	x := archive.Export{Home: dir, IncludeSecrets: true, AllowOutsideLinks: true, HomeIdle: true}
	whole, head, _ := exportHome(t, x)
	want := treeListing(t, dir)
	for _, name := range []string{"gateway.pid", "gateway_state.json", ".hinit-reserve", ".hinit-intent.json"} {
		delete(want, name)
	}
	into := t.TempDir()
	if _, _, err := (&archive.Import{Dir: into, Name: "two", Marker: "SOUL.md", AllowOutsideLinks: true}).Run(bytes.NewReader(whole.Bytes())); err != nil {
		t.Fatal(err)
	}
	if got := treeListing(t, filepath.Join(into, "two")); !maps.Equal(got, want) || head.Files != int64(len(want)) {
		t.Errorf("%d files came, of %d:\n%v\n%v", len(got), head.Files, got, want)
	}
	began := int64(-1)
	x.Snapshot, x.Offset, x.BeforeSend = head.Snapshot, 5000, func(from int64) { began = from }
	if rest, _, _ := exportHome(t, x); began != 5000 || !bytes.Equal(rest.Bytes(), whole.Bytes()[5000:]) {
		t.Errorf("the rest begins at %d, and is another one", began)
	}
	writeFile(t, filepath.Join(dir, "sessions/new"), "new")
	if _, now, _ := exportHome(t, x); began != 0 || now.Snapshot == head.Snapshot {
		t.Errorf("after a change it begins at %d, as %q", began, now.Snapshot)
	}
}

func TestAnArchiveWithoutSecretsIsMarked(t *testing.T) {
	out, head, _ := exportHome(t, archive.Export{Home: newHome(t)})
	names := head.LeftOut["secret"]
	if slices.Sort(names); head.Secrets || !slices.Equal(names, []string{".env", ".ssh", "auth.json", "workspace/client_secret.json"}) {
		t.Errorf("%+v", head)
	}
	if bytes.Contains(out.Bytes(), []byte("sk-1")) {
		t.Error("the archive has the key")
	}
	env := must(os.Stat(importHome(t, out) + "/.env"))(t)
	if env.Size() != 0 || env.Mode().Perm() != 0o600 {
		t.Errorf("%v", env)
	}
}

func TestACloneHasNoTokenOfABot(t *testing.T) {
	out, head, _ := exportHome(t, archive.Export{Home: newHome(t), ForClone: true, IncludeSecrets: true})
	names := head.LeftOut["identity that two profiles must not share"]
	slices.Sort(names)
	if want := []string{".ssh", "API_SERVER_PORT in .env", "TELEGRAM_BOT_TOKEN in .env", "auth.json", "platforms", "workspace/client_secret.json"}; !slices.Equal(names, want) {
		t.Errorf("left out: %q", names)
	}
	if env := string(must(os.ReadFile(importHome(t, out) + "/.env"))(t)); env != "OPENAI_API_KEY=sk-1\n" {
		t.Errorf("%q", env)
	}
}

func TestWhatIsSecretByItsName(t *testing.T) {
	for name, want := range map[string]bool{
		".env": true, ".env.bak-20260101T000000Z": true, ".env.example": false, "auth.json": true, ".anthropic_oauth.json": true, "shared/nous_auth.json": true,
		"google_token.json": true, "author.json": false, "workspace/auth.go": false, "monkey.json": false, "tls/site.pem": true, "cookies.txt": true, "config.yaml": false,
	} {
		if archive.HasSecretName(name, 0) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// TestADatabaseIsWholeWhileTheGatewayWrites checks that a database in the archive is consistent
// although the gateway writes to it.
func TestADatabaseIsWholeWhileTheGatewayWrites(t *testing.T) {
	dir := newHome(t)
	db := newDatabase(t, filepath.Join(dir, "busy.db"))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = transferMoney(db, i%7)
			}
		}
	}()
	// On a busy machine, no write may happen during an export, so repeat it.
	for moved, tries := 0, 0; moved < 3; tries++ {
		out, head, _ := exportHome(t, archive.Export{Home: dir})
		if head.Moment == archive.Inconsistent && slices.Equal(head.Moved, []string{"busy.db"}) {
			moved++
		} else if head.Moment != archive.Consistent || tries > 30 {
			t.Fatalf("%+v", head)
		}
		if n := accountSum(t, importHome(t, out)+"/busy.db"); n != 100 {
			t.Errorf("the accounts have %d together", n)
		}
	}
	quiet := sync.OnceFunc(func() { close(stop); <-done })
	_, head, _ := exportHome(t, archive.Export{Home: dir, StopGateway: func() error { quiet(); return nil }})
	if quiet(); head.Moment != archive.Consistent {
		t.Errorf("with the gateway stopped: %+v", head)
	}
}

func TestAFileThatNeverHoldsStillIsNamed(t *testing.T) {
	dir := newHome(t)
	f := must(os.Create(filepath.Join(dir, "restless.log")))(t)
	defer f.Close()
	// The hook changes the database in each pass, so each pass copies it again.
	x := archive.Export{Home: dir, Name: "coder", Backup: func(ctx context.Context, from, to *os.File, name string) error {
		_, err := fmt.Fprintln(f, name)
		return errors.Join(err, backup(ctx, from, to, name), os.Chtimes(filepath.Join(dir, name), time.Now(), time.Now()))
	}}
	head, _, _, err := x.Run(t.Context(), io.Discard)
	if err != nil || head.Moment != archive.Inconsistent || !slices.Contains(head.Moved, "restless.log") {
		t.Errorf("%+v, %v", head, err)
	}
}

func TestADamagedDatabaseIsCopiedAsItIs(t *testing.T) {
	dir := newHome(t)
	damaged := "SQLite format 3\x00" + strings.Repeat("nothing that follows is one", 1000)
	writeFile(t, filepath.Join(dir, "damaged.db"), damaged)
	writeFile(t, filepath.Join(dir, "damaged.db-wal"), "log")
	out, head, _ := exportHome(t, archive.Export{Home: dir})
	to := importHome(t, out)
	if got := string(must(os.ReadFile(to+"/damaged.db"))(t)) + string(must(os.ReadFile(to+"/damaged.db-wal"))(t)); got != damaged+"log" || head.Moment != archive.Consistent {
		t.Errorf("%d bytes, %+v", len(got), head)
	}
}

func TestTheProfileIsRenamedDuringTheExport(t *testing.T) {
	dir := newHome(t)
	rename := func() error { return os.Rename(dir, dir+"-renamed") }
	out, head, _ := exportHome(t, archive.Export{Home: dir, StopGateway: rename})
	if n := accountSum(t, importHome(t, out)+"/state.db"); n != 100 || head.Moment != archive.Consistent {
		t.Errorf("%d, %+v", n, head)
	}
	if left := must(filepath.Glob(dir + "-renamed/.hinit-export*"))(t); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}

// TestTheErrorOfAnExportWasPrintedTwice checks that a write error is printed once, not as "broken
// pipe; write: broken pipe".
func TestTheErrorOfAnExportWasPrintedTwice(t *testing.T) {
	dir := newHome(t)
	x := archive.Export{Home: dir, Name: "coder", Backup: backup}
	if _, _, _, err := x.Run(t.Context(), failingWriter{}); err == nil || strings.Count(err.Error(), "no reader") != 1 {
		t.Errorf("the export ends with %v", err)
	}
}

// failingWriter is a writer that always fails.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no reader") }

func TestTwoExportsAtOnce(t *testing.T) {
	dir := newHome(t)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			out, _, _ := exportHome(t, archive.Export{Home: dir})
			importHome(t, out)
		})
	}
	both.Wait()
	if left := must(filepath.Glob(dir + "/.hinit-export*"))(t); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}

// limitedBuffer is a writer that fails after a number of bytes.
type limitedBuffer struct {
	bytes.Buffer

	remaining int
}

func (s *limitedBuffer) Write(p []byte) (int, error) {
	n, _ := s.Buffer.Write(p[:min(len(p), s.remaining-s.Len())])
	if n < len(p) {
		return n, io.ErrClosedPipe
	}
	return n, nil
}

// TestAnImportGoesOnWhereItStood checks that an import continues after an interruption at random
// bytes.
func TestAnImportGoesOnWhereItStood(t *testing.T) {
	dir := newHome(t)
	writeFile(t, filepath.Join(dir, "large"), string(make([]byte, 1<<20)))
	to := t.TempDir()
	x := archive.Export{Home: dir, Name: "coder", Backup: backup}
	for at := int64(0); ; {
		part := &limitedBuffer{remaining: rand.IntN(400 << 10)}
		x.Offset = at
		head, _, kept, sendErr := x.Run(t.Context(), part)
		if (sendErr != nil) != kept {
			t.Fatal(kept, sendErr)
		}
		im := archive.Import{Dir: to, Name: "two", Marker: "SOUL.md", Offset: at}
		_, _, err := im.Run(&part.Buffer)
		if err == nil {
			break
		}
		x.Snapshot = head.Snapshot
		snapshot, now, whereErr := im.InterruptedAt()
		switch {
		case at == 0 && !errors.Is(err, archive.ErrInterrupted): // The cut was so early that not even the head arrived.
		case !errors.Is(err, archive.ErrInterrupted) || whereErr != nil || snapshot != head.Snapshot || now < at:
			t.Fatal(err, whereErr, snapshot, now, at)
		default:
			at = now
		}
	}
	if must(os.Stat(to+"/two/large"))(t).Size() != 1<<20 || accountSum(t, to+"/two/state.db") != 100 {
		t.Error("not all is there")
	}
}

func TestAStreamThatBeginsElsewhereChangesNothing(t *testing.T) {
	out, _, _ := exportHome(t, archive.Export{Home: newHome(t)})
	all := out.Bytes()
	im := archive.Import{Dir: t.TempDir(), Name: "two", Marker: "SOUL.md"}
	if _, _, err := im.Run(bytes.NewReader(all[:9000])); !errors.Is(err, archive.ErrInterrupted) {
		t.Fatal(err)
	}
	im.Offset = 512
	if _, _, err := im.Run(bytes.NewReader(all[512:])); !errors.Is(err, archive.ErrInterrupted) {
		t.Fatal(err)
	}
	im.Offset = 9000
	if _, _, err := im.Run(bytes.NewReader(all[9000:])); err != nil {
		t.Fatal(err)
	}
}

// buildArchive builds an archive from headers. The content of each file is its name.
func buildArchive(t *testing.T, head archive.Head, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	text := must(json.Marshal(head))(t)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(h.Name, err)
		}
		must(w.Write(content))(t)
	}
	add(tar.Header{Name: "HEAD.json", Mode: 0o600}, text)
	all := sha256.New()
	all.Write(text)
	headers = append(headers, tar.Header{Name: "SHA256", PAXRecords: map[string]string{}})
	for _, h := range headers {
		var content []byte
		h.ModTime = time.Unix(1e9, 0)
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			if content = []byte(h.Name); h.PAXRecords != nil && len(h.PAXRecords) == 0 {
				content = []byte(hex.EncodeToString(all.Sum(nil)))
			}
			sum := sha256.Sum256(content)
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{"SCHILY.xattr.user.sha256": hex.EncodeToString(sum[:])}
			}
		}
		add(h, content)
		fmt.Fprintf(all, "%q %c %o %d %d %q %s\n", h.Name, max(h.Typeflag, tar.TypeReg), h.Mode, len(content), h.ModTime.UnixNano(), h.Linkname, h.PAXRecords["SCHILY.xattr.user.sha256"])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestHostileArchives(t *testing.T) {
	soul := tar.Header{Name: "profile/SOUL.md", Mode: 0o644}
	head := archive.Head{Format: 1, Profile: "coder", Files: 10, Bytes: 1000}
	huge := head
	huge.Bytes = 1 << 49
	small := head
	small.Bytes = 4
	if _, _, err := (&archive.Import{Dir: t.TempDir(), Name: "two", Marker: "SOUL.md"}).Run(buildArchive(t, head, soul)); err != nil {
		t.Fatal("without anything hostile: ", err)
	}
	for what, in := range map[string]*bytes.Buffer{
		"a name above":         buildArchive(t, head, soul, tar.Header{Name: "profile/../../escaped", Mode: 0o644}),
		"an absolute name":     buildArchive(t, head, soul, tar.Header{Name: "/escaped", Mode: 0o644}),
		"another top":          buildArchive(t, head, soul, tar.Header{Name: "elsewhere/x", Mode: 0o644}),
		"a hard link":          buildArchive(t, head, soul, tar.Header{Name: "profile/x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}),
		"a device":             buildArchive(t, head, soul, tar.Header{Name: "profile/x", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}),
		"a pipe":               buildArchive(t, head, soul, tar.Header{Name: "profile/x", Typeflag: tar.TypeFifo}),
		"set-user-ID":          buildArchive(t, head, soul, tar.Header{Name: "profile/x", Mode: 0o4755}),
		"sticky":               buildArchive(t, head, soul, tar.Header{Name: "profile/x/", Typeflag: tar.TypeDir, Mode: 0o1777}),
		"an absolute link":     buildArchive(t, head, soul, tar.Header{Name: "profile/x", Typeflag: tar.TypeSymlink, Linkname: "/etc"}),
		"a link above":         buildArchive(t, head, soul, tar.Header{Name: "profile/x", Typeflag: tar.TypeSymlink, Linkname: "a/../../y"}),
		"a file below a link":  buildArchive(t, head, soul, tar.Header{Name: "profile/x", Typeflag: tar.TypeSymlink, Linkname: "y"}, tar.Header{Name: "profile/x/z", Mode: 0o644}),
		"a name twice":         buildArchive(t, head, soul, soul),
		"a link and a file":    buildArchive(t, head, soul, tar.Header{Name: "profile/SOUL.md", Typeflag: tar.TypeSymlink, Linkname: "y"}),
		"a wish to run":        buildArchive(t, head, soul, tar.Header{Name: "profile/gateway_state.json", Mode: 0o644}),
		"a snapshot":           buildArchive(t, head, soul, tar.Header{Name: "profile/.hinit-export/x", Mode: 0o644}),
		"a wrong checksum":     buildArchive(t, head, soul, tar.Header{Name: "profile/x", PAXRecords: map[string]string{"SCHILY.xattr.user.sha256": strings.Repeat("0", 64)}}),
		"no checksum":          buildArchive(t, head, soul, tar.Header{Name: "profile/x", PAXRecords: map[string]string{"a.b": "c"}}),
		"no marker":            buildArchive(t, head, tar.Header{Name: "profile/x", Mode: 0o644}, tar.Header{Name: "SHA256"}),
		"a wrong sum of all":   buildArchive(t, head, soul, tar.Header{Name: "SHA256"}),
		"more than its head":   buildArchive(t, small, soul),
		"no room":              buildArchive(t, huge, soul),
		"another format":       buildArchive(t, archive.Head{Format: 2}, soul),
		"a size below nothing": buildArchive(t, archive.Head{Format: 1, Bytes: -1}, soul),
		"no archive":           bytes.NewBufferString("hello"),
		"nothing":              {},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			_, _, err := (&archive.Import{Dir: dir + "/profiles", Name: "two", Marker: "SOUL.md"}).Run(in)
			if err == nil || errors.Is(err, archive.ErrInterrupted) {
				t.Fatal(err)
			}
			t.Log(err)
			for _, path := range must(filepath.Glob(dir + "/profiles/*"))(t) {
				t.Errorf("%s is there", path)
			}
			if left := treeListing(t, dir); len(left) != 1 {
				t.Errorf("%v", left)
			}
		})
	}
}

// TestAnArchiveOfSparseFilesFillsNoVolume checks that a file of 2^63-1 bytes in an archive can't
// overflow the sum of sizes and fill the volume.
func TestAnArchiveOfSparseFilesFillsNoVolume(t *testing.T) {
	dir := mountVolume(t, "size=16m")
	soul := tar.Header{Name: "profile/SOUL.md", Mode: 0o644}
	// The tar writer refuses the real names of these sparse records, so build them by hand.
	hole := tar.Header{Name: "0\n" + strings.Repeat("x", 510), Mode: 0o644, PAXRecords: map[string]string{
		"NUL.sparse.major": "1", "NUL.sparse.minor": "0", "NUL.sparse.name": "profile/x", "NUL.sparse.realsize": fmt.Sprint(int64(math.MaxInt64)),
	}}
	in := buildArchive(t, archive.Head{Format: 1, Profile: "coder", Files: 10, Bytes: 1000}, soul, hole)
	in = bytes.NewBuffer(bytes.ReplaceAll(in.Bytes(), []byte("NUL.sparse"), []byte("GNU.sparse")))
	_, _, err := (&archive.Import{Dir: dir, Name: "two", Marker: "SOUL.md"}).Run(in)
	if err == nil || !strings.Contains(err.Error(), "more than the 10 files and 1000 bytes") {
		t.Error(err)
	}
}

// TestOneMomentIsOneMoment checks that all files in the archive are from one moment. The writer
// counts in a database, then in a file.
func TestOneMomentIsOneMoment(t *testing.T) {
	testkit.SkipIfShort(t)
	dir := newHome(t)
	db := newDatabase(t, filepath.Join(dir, "count.db"))
	must(db.Exec("CREATE TABLE count (n INTEGER); INSERT INTO count VALUES (0)"))(t)
	writeFile(t, filepath.Join(dir, "count"), "0")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			_, err := db.Exec("UPDATE count SET n = ?", n)
			if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "count.new"), fmt.Append(nil, n), 0o600), os.Rename(filepath.Join(dir, "count.new"), filepath.Join(dir, "count"))); err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			case <-time.After(rand.N(700*time.Millisecond) * time.Duration(rand.N(2))):
			}
		}
	}()
	moments := make(map[string]int)
	for range 15 {
		out, head, _ := exportHome(t, archive.Export{Home: dir})
		moments[head.Moment]++
		if head.Moment != archive.Consistent {
			continue
		}
		to := importHome(t, out)
		copied := must(sql.Open("sqlite", "file:"+to+"/count.db"))(t)
		var inDB, inFile int
		err := copied.QueryRow("SELECT n FROM count").Scan(&inDB)
		_, scanErr := fmt.Sscan(string(must(os.ReadFile(to+"/count"))(t)), &inFile)
		if err = errors.Join(err, scanErr, copied.Close()); err != nil || inDB != inFile && inDB != inFile+1 {
			t.Errorf("%d in the database and %d in the file are of two moments: %v", inDB, inFile, err)
		}
	}
	close(stop)
	<-done
	if t.Log(moments); moments[archive.Consistent] == 0 {
		t.Error("no archive was of one moment")
	}
}

// flushWriter is a writer with Flush, like an HTTP response.
type flushWriter struct {
	bytes.Buffer
	flush func(text string)
}

func (f *flushWriter) Flush() { f.flush(f.String()) }

// makeSparseFile creates an empty sparse file whose size is a share of its file system's, and returns the
// size.
func makeSparseFile(t *testing.T, path string, share, of int64) {
	t.Helper()
	writeFile(t, path, "")
	var st unix.Statfs_t
	must(0, unix.Statfs(path, &st))(t)
	if err := os.Truncate(path, int64(st.Blocks)*int64(st.Bsize)/of*share); err != nil { //nolint:unconvert // 32 bits wide on some machines
		t.Skip(err)
	}
}

// TestAHugeSparseFileIsNotSent checks that an export of a huge sparse file fails at once.
func TestAHugeSparseFileIsNotSent(t *testing.T) {
	dir := newHome(t)
	makeSparseFile(t, dir+"/!a", 2, 1)
	x := archive.Export{Home: dir, Name: "coder", HomeIdle: true, BeforeSend: func(int64) { t.Error("it begins to send") }}
	var out bytes.Buffer
	if _, _, _, err := x.Run(t.Context(), &out); err == nil || out.Len() > 0 || !strings.Contains(err.Error(), "sparse, compressed or shared") {
		t.Errorf("%d bytes were sent: %v", out.Len(), err)
	}
}

// TestAReaderThatHasGoneEndsTheReadingOfAFile checks that an export sends its head first, and stops
// when the request ends.
func TestAReaderThatHasGoneEndsTheReadingOfAFile(t *testing.T) {
	dir := newHome(t)
	makeSparseFile(t, dir+"/!a", 7, 8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	out := &flushWriter{flush: func(text string) {
		if !strings.Contains(text, `"hinit_profile_archive":1`) {
			t.Errorf("the reader has %q", text)
		}
		time.AfterFunc(100*time.Millisecond, cancel)
	}}
	x := archive.Export{Home: dir, Name: "coder", HomeIdle: true}
	_, _, _, err := x.Run(ctx, out)
	// On a busy machine, the reading may not have begun yet.
	ended := errors.Is(err, os.ErrClosed) || errors.Is(err, context.Canceled)
	if !ended || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// TestAnExportNamesTheFileThatChanges checks that the error names a file that is truncated during
// the export.
func TestAnExportNamesTheFileThatChanges(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/data", strings.Repeat("x", 1<<20))
	out := &truncatingWriter{file: dir + "/data"}
	x := archive.Export{Home: dir, Name: "coder", HomeIdle: true}
	if _, _, _, err := x.Run(t.Context(), out); err == nil || !strings.Contains(err.Error(), `"data" has become shorter while it was sent`) {
		t.Error(err)
	}
}

// truncatingWriter is a writer that truncates a file after its header was written.
type truncatingWriter struct{ file string }

func (s *truncatingWriter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("profile/data")) {
		return len(p), os.Truncate(s.file, 0)
	}
	return len(p), nil
}

// TestAnArchiveIsRefusedByItsHead checks that an import refuses a wrong archive after its head,
// without waiting for content.
func TestAnArchiveIsRefusedByItsHead(t *testing.T) {
	whole, _, _ := exportHome(t, archive.Export{Home: newHome(t), IncludeSecrets: true})
	dir := t.TempDir()
	writeFile(t, dir+"/two/SOUL.md", "soul")
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write(whole.Bytes()[:1536]) }() // The stream contains only the head.
	result := make(chan error, 1)
	go func() {
		_, _, err := (&archive.Import{Dir: dir, Name: "two"}).Run(r)
		result <- err
	}()
	select {
	case err := <-result:
		if err == nil || !strings.Contains(err.Error(), "there is a profile or a file of that name") {
			t.Error(err)
		}
	case <-time.After(testkit.Patience):
		t.Error("it waits for the content")
	}
}

// TestAStreamThatEndsInItsHeadIsNotComplete checks that a stream that ends in its head is reported
// as incomplete.
func TestAStreamThatEndsInItsHeadIsNotComplete(t *testing.T) {
	whole, _, _ := exportHome(t, archive.Export{Home: newHome(t)})
	says := func(in io.Reader) string {
		_, _, err := (&archive.Import{Dir: t.TempDir(), Name: "two"}).Run(in)
		return fmt.Sprint(err)
	}
	for _, n := range []int{0, 100, 512, 600} {
		begins := whole.Bytes()[:n]
		if output := says(bytes.NewReader(begins)); output != "the archive is not complete: unexpected EOF" {
			t.Errorf("after %d bytes it says %q", n, output)
		}
		if output := says(io.MultiReader(bytes.NewReader(begins), iotest.ErrReader(unix.ECONNRESET))); output != unix.ECONNRESET.Error() {
			t.Errorf("of a connection that breaks after %d bytes it says %q", n, output)
		}
	}
	if output := says(strings.NewReader(strings.Repeat("a text", 200))); output != "it is not an archive of a profile" {
		t.Error(output)
	}
}

// TestADatabaseThatStopsGrowingDelaysItsExportForAMinute checks that an export waits at most a
// minute for a database copy that does not grow. An agent may stop the copying program.
func TestADatabaseThatStopsGrowingDelaysItsExportForAMinute(t *testing.T) {
	for name, grows := range map[string]bool{"stops": false, "grows slowly": true} {
		t.Run(name, func(t *testing.T) {
			dir := newHome(t)
			file := must(os.OpenFile(dir+"/state.db", os.O_WRONLY, 0))(t)
			if err := errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, 128<<20), file.Close()); err != nil {
				t.Skip(err)
			}
			synctest.Test(t, func(t *testing.T) {
				x := archive.Export{Home: dir, Name: "coder", Backup: func(ctx context.Context, _, to *os.File, name string) error {
					began := time.Now()
					for n := 1; (n < 4 || !grows) && ctx.Err() == nil; n++ {
						if n == 1 || grows {
							writeFile(t, fmt.Sprintf("/proc/self/fd/%d/%s", to.Fd(), name), strings.Repeat("x", n))
						}
						select {
						case <-ctx.Done():
						case <-time.After(45 * time.Second):
						}
					}
					if took := time.Since(began); (ctx.Err() == nil) != grows || took > 140*time.Second {
						t.Errorf("after %v: %v", took, ctx.Err())
					}
					return ctx.Err()
				}}
				if head, _, _, err := x.Run(t.Context(), io.Discard); err != nil || slices.Contains(head.Torn, "state.db") == grows {
					t.Errorf("%q changed: %v", head.Torn, err)
				}
			})
		})
	}
}

// TestAnEnvFileThatIsReadOnlyIsImported checks that an unprivileged user can import a .env of mode
// 0400.
func TestAnEnvFileThatIsReadOnlyIsImported(t *testing.T) {
	testkit.NeedRoot(t)
	from, dir := smallHome(t), t.TempDir()
	must(0, errors.Join(os.Chmod(from+"/.env", 0o400), os.Chown(dir, 10000, 10000), os.Chmod(filepath.Dir(dir), 0o755)))(t)
	out, _, _ := exportHome(t, archive.Export{Home: from, IncludeSecrets: true})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(0, unix.Setfsuid(10000))(t)
	_, _, err := (&archive.Import{Dir: dir, Name: "two", Marker: "SOUL.md"}).Run(out)
	must(0, unix.Setfsuid(0))(t)
	if info, err2 := os.Stat(dir + "/two/.env"); err != nil || err2 != nil || info.Mode() != 0o400 {
		t.Errorf("%v, %v", err, err2)
	}
}
