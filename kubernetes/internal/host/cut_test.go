package host

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"hinit/profiles/archive"
)

// TestAMoveIsCutAnywhere interrupts a move around each boundary of a block, and restarts the
// receiving host. The old host must keep the data, and a continued move must transfer all of it.
func TestAMoveIsCutAnywhere(t *testing.T) {
	s, dir := newVolume(t, "u1", "learnt")
	home := filepath.Join(dir, "profiles/coder")
	err := os.Mkdir(filepath.Join(home, "deep"), 0o750)
	err = errors.Join(err, os.WriteFile(filepath.Join(home, "deep/part"), make([]byte, 700), 0o600), os.Symlink("data", filepath.Join(home, "link")))
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	x := archive.Export{Home: home, Name: "coder", IncludeSecrets: true, AllowOutsideLinks: true, HomeIdle: true}
	_, sum, _, err := x.Run(t.Context(), &stream)
	if err != nil {
		t.Fatal(err)
	}
	o, from, _ := newOfferServer(t, s, &atomic.Int64{})
	_, at := newVolume(t, "", "")
	n := 0
	for cut := range stream.Len() {
		if near := cut % 512; near > 1 && near != 511 && cut%67 != 0 {
			continue
		}
		n++
		if !cutMove(t, at, from.Nonce, stream.Bytes()[:cut]) {
			continue // Only padding is missing at this offset.
		}
		to, err := OpenStore(at)
		if err != nil {
			t.Fatal(err)
		}
		if err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost); err != nil {
			t.Fatalf("cut after byte %d, the move continues with %v", cut, err)
		}
		r, err := to.receipt("coder", "u1", from.Nonce)
		if err != nil || r.SHA256 != sum {
			t.Fatalf("cut after byte %d, the sum is %+v (%v), and not %s", cut, r, err, sum)
		}
		if _, sent := o.nonceSince("u1", r.SHA256, anyRun); sent == "" {
			t.Fatalf("cut after byte %d, the owner has sent another sum", cut)
		}
		if err := to.Install("coder", "u1", from.Nonce); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(at, "profiles/coder/link"))
		part, err2 := os.ReadFile(filepath.Join(at, "profiles/coder/deep/part"))
		if err := errors.Join(err, err2); err != nil || string(text) != "learnt" || len(part) != 700 || !inspectStore(t, s, "u1").Live {
			t.Fatalf("cut after byte %d: %q, %d bytes, %v; the owner: %+v", cut, text, len(part), err, inspectStore(t, s, "u1"))
		}
		if err := to.Delete("coder", "u1", true); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a stream of %d bytes was cut in %d places", stream.Len(), n)
}

// cutMove receives a part of a stream on the volume at, and reopens the store. It reports whether
// the stream was incomplete.
func cutMove(t *testing.T, at, nonce string, part []byte) bool {
	t.Helper()
	to, err := OpenStore(at)
	if err != nil {
		t.Fatal(err)
	}
	im, done, err := to.importer("coder", "u1")
	if err != nil {
		t.Fatal(err)
	}
	err = to.receive(im, "coder", "u1", nonce, bytes.NewReader(part))
	done()
	if to, _ = OpenStore(at); to == nil {
		t.Fatal("the store does not open")
	}
	l := inspectStore(t, to, "u1")
	if err == nil && l.Incoming == nonce {
		return false
	}
	if l.Live || l.Incoming == nonce || err == nil {
		t.Fatalf("after %d bytes the other host has %+v, %v", len(part), l, err)
	}
	return true
}

// TestAMoveThatCrashesBeforeItsReceiptBeginsAnew checks that a move begins anew if the receipt of the received data,
// which is written last, is missing.
func TestAMoveThatCrashesBeforeItsReceiptBeginsAnew(t *testing.T) {
	s, _ := newVolume(t, "u1", "learnt")
	_, from, _ := newOfferServer(t, s, &atomic.Int64{})
	to, at := newVolume(t, "", "")
	if err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(at, incomingPath("coder", "u1", from.Nonce)+".json")); err != nil {
		t.Fatal(err)
	}
	to, err := OpenStore(at)
	if err != nil {
		t.Fatal(err)
	}
	if l := inspectStore(t, to, "u1"); l.Incoming != "" || l.Live {
		t.Fatalf("without a receipt: %+v", l)
	}
	err = errors.Join(to.fetch(t.Context(), "coder", "u1", from, fetchingHost), to.Install("coder", "u1", from.Nonce))
	if err != nil || !inspectStore(t, to, "u1").Live {
		t.Errorf("%v, %+v", err, inspectStore(t, to, "u1"))
	}
}
