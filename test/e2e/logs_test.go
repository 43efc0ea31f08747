package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestLogs compares the raw lines in docker logs with the timestamped ones in the file (contract, section 7).
func TestLogs(t *testing.T) {
	parallel(t)
	files := together(
		profile("default", "running", "flood=1000", "flood_lines=500"), profile("coder", "running", "flood=1000", "flood_lines=500"),
	)
	c := start(t, setup{files: files}, "sleep", "1000")
	for _, name := range []string{"default", "coder"} {
		file := "/opt/data/logs/gateways/" + name + "/current"
		eventually(t, settle, func() error {
			// A line of the file is a time, two spaces, and a line of docker logs.
			out, stderr := c.logs()
			raw := map[string]int{}
			for line := range strings.Lines(out + stderr) {
				raw[strings.TrimSuffix(line, "\n")]++
			}
			current := c.exec("cat", file)
			if current.code != 0 {
				return fmt.Errorf("no %s so far: %v", file, current)
			}
			lines := strings.Split(strings.TrimSpace(current.out), "\n")
			if len(lines) < 500 {
				return fmt.Errorf("%s: %d lines so far", file, len(lines))
			}
			for _, line := range lines {
				if !matches(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9}  `, line) {
					return fmt.Errorf("%s: no timestamp before %q", file, line)
				}
				if raw[line[31:]] == 0 {
					return fmt.Errorf("docker logs has no line %q", line[31:])
				}
			}
			if !strings.Contains(lines[1], "⚕ Hermes Gateway Starting") {
				return fmt.Errorf("no banner in %s: %q", file, lines[:3])
			}
			return nil
		})
		if owner := c.must("stat", "-c", "%U:%G", file); owner != "hermes:hermes" {
			t.Errorf("%s belongs to %s", file, owner)
		}
	}
	if r := c.exec("hinit", "logs", "coder", "-n", "3"); r.code != 0 || strings.Count(r.out, "\n") != 3 {
		t.Errorf("want 3 lines: %v", r)
	}
}

// TestLogRotation prints more than one file holds.
func TestLogRotation(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: profile("coder", "running", "flood=max", "flood_bytes=1000", "flood_lines=3500")}, "sleep", "1000")
	eventually(t, settle, func() error {
		r := c.exec("sh", "-c", "cd /opt/data/logs/gateways/coder && stat -c '%n %s' * && cat * | wc -l")
		if r.code != 0 {
			return fmt.Errorf("%v", r)
		}
		sizes := strings.Fields(r.out)
		total := sizes[len(sizes)-1]
		if len(sizes) < 2*4+1 {
			return fmt.Errorf("files and sizes %v, want at least 4 for 3.5 MB", sizes)
		}
		for i := 1; i < len(sizes)-1; i += 2 {
			if len(sizes[i]) > 7 || sizes[i] > "1000000" && len(sizes[i]) == 7 {
				return fmt.Errorf("%s has %s bytes", sizes[i-1], sizes[i])
			}
		}
		if len(total) != 4 || total < "3504" { // and the banner's three lines, and that it runs
			return fmt.Errorf("%s lines in %v", total, sizes)
		}
		return nil
	})
}
