package host

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// TestAnOfferPutsNothingIntoAnotherHome checks that a forged nonce can't make the receiving host
// write into another profile's home.
func TestAnOfferPutsNothingIntoAnotherHome(t *testing.T) {
	s, _ := newVolume(t, "u1", "a program")
	o, from, _ := newOfferServer(t, s, &atomic.Int64{})
	to, dir := newVolume(t, "", "")
	if err := os.MkdirAll(filepath.Join(dir, "profiles/writer"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, from.Nonce = range []string{"/../../../profiles/writer/plugins", "/../../../profiles/scribe", "a/b", "a.b", ".."} {
		o.mu.Lock()
		o.byUID["u1"].nonce = from.Nonce
		o.mu.Unlock()
		err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost)
		var made []string
		for _, place := range []string{"profiles/*", "profiles/*/*", incomingDir + "/*"} {
			more, _ := filepath.Glob(filepath.Join(dir, place))
			made = append(made, more...)
		}
		if err == nil || len(made) != 1 {
			t.Errorf("nonce %q: %v, and there is %q", from.Nonce, err, made)
		}
	}
}
