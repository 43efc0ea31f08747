package tools

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
	"hinit/logrotate/reader"
)

func TestGrepFollowsWithoutAGapBehindTheLastMatches(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, archive.CurrentFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write := func(texts ...string) {
		for _, text := range texts {
			if _, err := file.WriteString("2026-01-02 03:04:05.000000006  " + text + "\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("error one", "fine", "error two", "error three", "fine")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	err = readMatching(ctx, fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: 2, Follow: true}, regexp.MustCompile("^error").Match, func(line []byte) error {
		_, text, _ := reader.SplitLine(line)
		got = append(got, string(text))
		switch string(text) {
		case "error three":
			write("fine", "error four")
		case "error four":
			cancel()
		}
		return nil
	})
	if want := []string{"error two", "error three", "error four"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %s, %v", strings.Join(got, ", "), err)
	}
}
