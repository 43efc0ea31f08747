package archive_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"hinit/profiles/archive"
)

// smallHome creates a home with a small archive: files of several sizes, a directory, a link and a
// long name.
func smallHome(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "coder")
	for name, text := range map[string]string{
		"SOUL.md": "soul", ".env": "", "block": strings.Repeat("b", 512), "deep/" + strings.Repeat("n", 120): strings.Repeat("p", 700),
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	must(0, os.Symlink("/usr/bin/python3", dir+"/out"))(t)
	return dir
}

// interruptedMove repeatedly moves a profile, and interrupts the stream.
type interruptedMove struct {
	testing.TB

	from, dir string
	export    archive.Export
	archive   []byte
	sum       string
	want      map[string]string // Content of the exported home.
	old       map[string]string // Content of the profile that the import replaces.
}

func newInterruptedMove(t *testing.T) *interruptedMove {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		dir = mountVolume(t, "size=16m") // On an in-memory file system, a sync takes no time.
	}
	c := &interruptedMove{TB: t, from: smallHome(t), dir: dir}
	c.export = archive.Export{Home: c.from, IncludeSecrets: true, AllowOutsideLinks: true, HomeIdle: true}
	out, _, sum := exportHome(t, c.export)
	c.archive, c.sum, c.want = out.Bytes(), sum, treeListing(t, c.from)
	writeFile(t, c.dir+"/old/SOUL.md", "old")
	c.old = treeListing(t, c.dir+"/old")
	return c
}

// run imports a stream that begins at an offset of the archive.
func (c *interruptedMove) run(name string, from int64, stream []byte) (string, error) {
	im := archive.Import{Dir: c.dir, Name: name, Marker: "SOUL.md", AllowOutsideLinks: true, Offset: from, MayReplace: name == "old"}
	_, sum, err := im.Run(bytes.NewReader(stream))
	return sum, err
}

// listed describes a profile, or returns nil if there is none.
func (c *interruptedMove) listed(name string) map[string]string {
	c.Helper()
	if _, err := os.Lstat(filepath.Join(c.dir, name)); err != nil {
		return nil
	}
	return treeListing(c, filepath.Join(c.dir, name))
}

// reset removes the imported profile, or restores the old one.
func (c *interruptedMove) reset(name string) {
	c.Helper()
	must(0, os.RemoveAll(filepath.Join(c.dir, name)))(c)
	if name == "old" {
		writeFile(c, c.dir+"/old/SOUL.md", "old")
		c.old = treeListing(c, c.dir+"/old")
	}
}

// remainingStream returns the part of the archive that an import still needs.
func (c *interruptedMove) remainingStream(name string, cut int) (from int64, stream []byte) {
	c.Helper()
	snapshot, at, err := (&archive.Import{Dir: c.dir, Name: name}).InterruptedAt()
	if errors.Is(err, os.ErrNotExist) {
		return 0, c.archive
	}
	if err != nil || at != int64(cut) {
		c.Fatalf("cut after byte %d, an import continues at %d: %v", cut, at, err)
	}
	x := c.export
	x.Name, x.Snapshot, x.Offset = "coder", snapshot, at
	var out bytes.Buffer
	if _, sum, _, err := x.Run(c.Context(), &out); err != nil || sum != c.sum {
		c.Fatalf("cut after byte %d, the export continues with %v", cut, err)
	}
	return at, out.Bytes()
}

// interruptAt sends the archive up to an offset, checks both sides, and sends the rest.
func (c *interruptedMove) interruptAt(name string, at int) {
	c.Helper()
	part := &limitedBuffer{remaining: at}
	x := c.export
	x.Name = "coder"
	if _, _, _, err := x.Run(c.Context(), part); err == nil {
		c.Fatalf("an export that was cut after byte %d reports no error", at)
	}
	before := c.listed(name)
	if sum, err := c.run(name, 0, part.Bytes()); err == nil && sum == c.sum && maps.Equal(c.listed(name), c.want) {
		c.reset(name) // Only padding is missing.
		return
	} else if err == nil {
		c.Fatalf("an import that was cut after byte %d reports no error", at)
	}
	if now := c.listed(name); !maps.Equal(now, before) || (now == nil) != (before == nil) {
		c.Fatalf("an import that was cut after byte %d leaves %v", at, now)
	}
	from, stream := c.remainingStream(name, at)
	if sum, err := c.run(name, from, stream); err != nil || sum != c.sum {
		c.Fatalf("cut after byte %d, the rest from %d ends with %v, sum %q", at, from, err, sum)
	}
	if now := c.listed(name); !maps.Equal(now, c.want) {
		c.Fatalf("cut after byte %d, the profile is\n%v\nand not\n%v", at, now, c.want)
	}
	if left := must(filepath.Glob(c.dir + "/.*"))(c); len(left) != 0 {
		c.Fatalf("cut after byte %d, %q is left", at, left)
	}
	c.reset(name)
}

var eachByte = flag.Bool("each-byte", false, "cut archives after each byte, and not only at each block and every 11 bytes")

// TestAnArchiveIsCutAnywhere interrupts an export at each kind of offset. The import must never
// create a partial profile, and must complete it with the rest.
func TestAnArchiveIsCutAnywhere(t *testing.T) {
	c := newInterruptedMove(t)
	n := 0
	for at := range c.archive {
		if near := at % 512; *eachByte || near < 2 || near == 511 || at%11 == 0 && !testing.Short() {
			c.interruptAt([]string{"two", "old"}[n%2], at)
			n++
		}
	}
	if now := treeListing(t, c.from); !maps.Equal(now, c.want) {
		t.Errorf("the home of the export is %v", now)
	}
	t.Logf("an archive of %d bytes was cut in %d places", len(c.archive), n)
}

// TestAPartThatLostItsEndInACrashIsRefused zeroes the end of a kept part, as a power loss can. The
// import must reject it and begin anew.
func TestAPartThatLostItsEndInACrashIsRefused(t *testing.T) {
	c := newInterruptedMove(t)
	for at := 1536; at < len(c.archive); at += 101 {
		_, err := c.run("two", 0, c.archive[:at])
		if err == nil {
			break // Only padding is missing.
		} else if !errors.Is(err, archive.ErrInterrupted) {
			t.Fatalf("after byte %d: %v", at, err)
		}
		kept := filepath.Join(c.dir, archive.ImportPrefix+"two", "archive")
		part := must(os.ReadFile(kept))(t)
		clear(part[max(1536, at-600):])
		if bytes.Equal(part, c.archive[:at]) {
			continue // These bytes were zero before, so nothing is cut.
		}
		must(0, os.WriteFile(kept, part, 0o600))(t)
		if _, err := c.run("two", int64(at), c.archive[at:]); err == nil || c.listed("two") != nil {
			t.Fatalf("a part of %d bytes that has lost its end: %v, and a profile %v", at, err, c.listed("two"))
		}
		from, stream := c.remainingStream("two", 0)
		if sum, err := c.run("two", from, stream); err != nil || sum != c.sum || from != 0 {
			t.Fatalf("after a part of %d bytes that has lost its end, from %d: %v", at, from, err)
		}
		c.reset("two")
	}
}

// A clone that failed left half an archive beside the homes for a week, though nothing could continue it.
func TestAFailedCloneLeavesNothing(t *testing.T) {
	whole, _, _ := exportHome(t, archive.Export{Home: newHome(t), ForClone: true})
	for _, failed := range []error{io.ErrUnexpectedEOF, io.EOF, context.Canceled} {
		dir := t.TempDir()
		_, _, err := (&archive.Import{Dir: dir, Name: "two"}).Run(io.MultiReader(bytes.NewReader(whole.Bytes()[:whole.Len()/2]), iotest.ErrReader(failed)))
		if err == nil || errors.Is(err, archive.ErrInterrupted) || strings.Contains(err.Error(), "--from") {
			t.Errorf("after %v: %v", failed, err)
		}
		if left := treeListing(t, dir); len(left) != 0 {
			t.Errorf("after %v it leaves %v", failed, left)
		}
	}
}
