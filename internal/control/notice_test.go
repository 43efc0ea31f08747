package control

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

func TestNoticesAreFewAndTheirKeysAreWords(t *testing.T) {
	var n noticeLimit
	now := time.Now()
	for i := range noticeBurst {
		if !n.allow(now) {
			t.Fatalf("notice %d is one too many", i)
		}
	}
	if n.allow(now) {
		t.Error("there is no limit")
	}
	for i := range noticeRate + 1 {
		if n.allow(now.Add(time.Second)) != (i < noticeRate) {
			t.Errorf("a second later, notice %d: there are not %d more", i+1, noticeRate)
		}
	}
	for key, want := range map[string]bool{
		"a": true, "Job/3.done_x-y": true, strings.Repeat("k", 64): true, "": false, "a b": false, "a\n": false, "ü": false, strings.Repeat("k", 65): false,
	} {
		if isNoticeKey(key) != want {
			t.Errorf("the key %q is taken: %t", key, !want)
		}
	}
	if got := show.EscapeLine("a\x1b[31m\n\"ü\""); got != `a\x1b[31m\n"ü"` {
		t.Errorf("it is escaped as %q", got)
	}
}

// Notices of the agent must not use up the limit for notices of root.
func TestTheNoticesOfTheAgentLeaveRoomForRoots(t *testing.T) {
	s := newServer(newFakeBackend(), readableByAll)
	s.now = func() time.Time { return time.Unix(1e9, 0) }
	post := func(uid uint32) error {
		_, err := postNotice(s, &request{Request: httptest.NewRequest(http.MethodPost, "/v1/notices", nil), client: peer{uid: uid}}, client.Notice{Key: "a"})
		return err
	}
	for post(readableByAll.AgentUID) == nil {
	}
	if err := post(0); err != nil {
		t.Error(err)
	}
}

// noticeRecorder records the last notice.
type noticeRecorder struct {
	*fakeBackend

	last supervisor.Remark
}

func (c *noticeRecorder) Do(_ context.Context, e supervisor.Event) error {
	c.last, _ = e.(supervisor.Remark)
	return nil
}

// A notice must be cut to the maximum size in PID 1. Control characters take four times their size when escaped, and PID 1
// keeps a thousand notices.
func TestANoticeIsKeptAsLongAsItMayBe(t *testing.T) {
	core := &noticeRecorder{fakeBackend: newFakeBackend()}
	s := newServer(core, readableByAll)
	_, err := postNotice(s, &request{Request: httptest.NewRequest(http.MethodPost, "/v1/notices", nil)}, client.Notice{Key: "a", Data: strings.Repeat("\x01", maxNoticeData)})
	if size := len(core.last.Text) + len(core.last.Data); err != nil || size == 0 || size > 2*maxNoticeData+2*maxNoticeKey {
		t.Errorf("a notice takes %d bytes: %v", size, err)
	}
}
