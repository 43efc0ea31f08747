package profiles

import (
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/handover"
)

func TestAnotherImageRemembersWhatWasAsked(t *testing.T) {
	old := NewIntents(Open(t.TempDir(), fsutil.Self(), "SOUL.md"))
	old.Note("coder", Running)
	old.put("writer", intent{want: Stopped, at: time.Now(), pending: true})
	data, err := old.Export(handover.NewCodec())
	if err != nil {
		t.Fatal(err)
	}
	next := NewIntents(old.store)
	if err := next.Import(handover.NewCodec(), data); err != nil {
		t.Fatal(err)
	}
	for profile, was := range old.asked {
		is := next.asked[profile]
		if is.want != was.want || is.pending != was.pending || is.at.Sub(was.at).Abs() > time.Millisecond {
			t.Errorf("%s: %+v, was %+v", profile, is, was)
		}
	}
	if _, asked := next.Want("nobody"); asked || len(next.asked) != 2 {
		t.Errorf("%d are remembered", len(next.asked))
	}
}
