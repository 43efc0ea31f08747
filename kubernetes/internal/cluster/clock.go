package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// nowPatch makes time.Now add the seconds in a file, whose name is in the environment variable VARIABLE. A goroutine reads
// the file 50 times a second, because the runtime also calls time.Now where it can't read files. Only the wall clock steps,
// as with clock_settime(2); the monotonic clock continues.
const nowPatch = `
var stepped atomic.Int64

func init() {
	name, is := syscall.Getenv("VARIABLE")
	if !is {
		return
	}
	go func() {
		for ; ; Sleep(20 * Millisecond) {
			fd, err := open(name)
			if err != nil {
				continue
			}
			var buf [32]byte
			n, _ := read(fd, buf[:])
			closefd(fd)
			ahead, sign := int64(0), int64(1)
			for _, c := range buf[:n] {
				if c == '-' {
					sign = -1
				} else {
					ahead = ahead*10 + int64(c-'0')
				}
			}
			stepped.Store(sign * ahead)
		}
	}()
}
`

// SteppingClock writes an overlay for `go build -overlay` into dir, and returns the overlay's file name. In a program that is
// built with it, the wall clock is ahead by a number of seconds. The program reads this number from a file. An environment
// variable with the name variable holds the file's path.
func SteppingClock(dir, variable string) (overlay string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src/time/time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	const now = "sec, nsec, mono := runtimeNow()\n\tif mono == 0 {"
	changed := strings.Replace(string(text), now, "sec, nsec, mono := runtimeNow()\n\tsec += stepped.Load()\n\tif mono == 0 {", 1)
	changed = strings.Replace(changed, "import (", "import (\n\t\"sync/atomic\"\n\t\"syscall\"", 1)
	if !strings.Contains(changed, "stepped.Load") {
		return "", errors.New("cannot make a clock that steps: time.Now of this Go has another text")
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {source: filepath.Join(dir, "time.go")}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	changed += strings.ReplaceAll(nowPatch, "VARIABLE", variable)
	return overlay, errors.Join(os.WriteFile(filepath.Join(dir, "time.go"), []byte(changed), 0o600), os.WriteFile(overlay, list, 0o600))
}
