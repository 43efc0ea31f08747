package profiles

import (
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/reexec"
)

func TestTheNextGenerationRemembersWhatWasAsked(t *testing.T) {
	old := NewIntents(Open(t.TempDir(), fsutil.ProcessActor(), "SOUL.md"))
	old.RecordExternal("coder", Running)
	old.put("writer", intent{want: Stopped, uptime: time.Hour, pending: true})
	was := old.HandOver()
	data, err := reexec.NewCodec().Encode(&was)
	if err != nil {
		t.Fatal(err)
	}
	var is Handover
	if err := reexec.NewCodec().Decode(data, &is); err != nil {
		t.Fatal(err)
	}
	next := NewIntents(old.store)
	next.TakeOver(is)
	for profile, was := range old.intents {
		is := next.intents[profile]
		if is.want != was.want || is.pending != was.pending || is.uptime != was.uptime {
			t.Errorf("%s: %+v, was %+v", profile, is, was)
		}
	}
	if _, asked := next.LastOrder("nobody"); asked || len(next.intents) != 2 {
		t.Errorf("%d are remembered", len(next.intents))
	}
}
