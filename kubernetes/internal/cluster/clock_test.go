package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestASteppingClockStepsTheWallClockAlone checks that a program with a stepping clock sees another wall clock and the
// real monotonic clock.
func TestASteppingClockStepsTheWallClockAlone(t *testing.T) {
	dir := t.TempDir()
	overlay, err := SteppingClock(dir, "TEST_CLOCK")
	if err != nil {
		t.Fatal(err)
	}
	const program = `package main

import (
	"fmt"
	"time"
)

func main() {
	began := time.Now()
	for time.Now().Unix()-began.Unix() < 1800 && time.Since(began) < time.Minute {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(time.Now().Unix(), int(time.Since(began).Seconds()))
}
`
	source, ahead := filepath.Join(dir, "main.go"), filepath.Join(dir, "ahead")
	for name, text := range map[string]string{source: program, ahead: "3600"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built := filepath.Join(dir, "program")
	cmd := exec.Command("go", "build", "-overlay", overlay, "-o", built, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd = exec.Command(built)
	cmd.Env = append(os.Environ(), "TEST_CLOCK="+ahead)
	out, err := cmd.Output()
	words := strings.Fields(string(out))
	if err != nil || len(words) != 2 {
		t.Fatalf("%v: %q", err, out)
	}
	wall, _ := strconv.ParseInt(words[0], 10, 64)
	passed, _ := strconv.Atoi(words[1])
	if off := time.Until(time.Unix(wall, 0)); off < 50*time.Minute || off > 61*time.Minute || passed > 60 {
		t.Errorf("the wall clock is %s ahead, and %d s have passed", off, passed)
	}
}
