package promises_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTermWhileHinitBegins sends SIGTERM to a starting container. Even before main, it must stop
// the container in order.
func TestTermWhileHinitBegins(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	random := rand.New(rand.NewPCG(*seed, 0))
	for range shortOrFull(10, 400) {
		// The runtime reports the initialisation of each package, before main.
		b := newTestContainer(t, setup{env: []string{"GODEBUG=inittrace=1"}})
		b.start()
		for begin := time.Now(); !b.outputContains("err", "init hinit/internal/early @"); { // Poll without a pause, because main begins a millisecond later.
			if time.Since(begin) > patience {
				t.Fatal("it does not listen")
			}
		}
		<-time.After(time.Duration(random.Float64() * random.Float64() * random.Float64() * float64(40*time.Millisecond)))
		switch code, _ := b.stop(); code {
		case 0, 128 + int(unix.SIGTERM): // The exit code is 128+SIGTERM if the CMD was started.
			sheet.add("terms at the beginning", 1)
		default:
			t.Fatalf("the container has ended with code %d", code)
		}
	}
}

// outputContains reports whether an output stream of the container contains a text.
func (b *testContainer) outputContains(stream, text string) bool {
	got, err := os.ReadFile(b.path(stream))
	return err == nil && bytes.Contains(got, []byte(text))
}
