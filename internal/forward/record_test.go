package forward

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/loglevel"
	"hinit/internal/testkit"
)

// Each encoder must give the severity of a line, and must mark all lines of a traceback as errors.
func TestEveryEncoderSaysHowSeriousALineIs(t *testing.T) {
	at := time.Unix(1, 0).UTC()
	for _, c := range []struct {
		level          loglevel.Level
		kind           string
		number, syslog string
	}{
		{loglevel.Debug, KindLog, `"severityNumber":5,"severityText":"debug"`, "<31>1 "},
		{loglevel.Info, KindLog, `"severityNumber":9,"severityText":"info"`, "<30>1 "},
		{loglevel.Info, KindEvent, `"severityNumber":9,"severityText":"info"`, "<29>1 "},
		{loglevel.Warning, KindGap, `"severityNumber":13,"severityText":"warning"`, "<28>1 "},
		{loglevel.Error, KindLog, `"severityNumber":17,"severityText":"error"`, "<27>1 "},
		{loglevel.Critical, KindLog, `"severityNumber":21,"severityText":"critical"`, "<26>1 "},
	} {
		r := Record{Time: at, Kind: c.kind, Service: "gateway-coder", Profile: "coder", Text: "text", Level: c.level}
		if body := string(encodeOTLP("here", []Record{r})); !strings.Contains(body, c.number) {
			t.Errorf("%v: OTLP %s", c.level, body)
		}
		if body := string(encodeLoki("here", []Record{r})); !strings.Contains(body, `"level":"`+c.level.String()+`"`) {
			t.Errorf("%v: Loki %s", c.level, body)
		}
		if got := string(encodeSyslog("here", &r)); !strings.HasPrefix(got, c.syslog) {
			t.Errorf("%v: syslog %s", c.level, got)
		}
		text, err := json.Marshal(r)
		if err != nil || !strings.Contains(string(text), `"level":"`+c.level.String()+`"`) {
			t.Errorf("%v: JSON %s, %v", c.level, text, err)
		}
	}
}

func TestATracebackIsForwardedAsTheErrorBeforeIt(t *testing.T) {
	l, f := newLog(t)
	s := &fakeSink{}
	for _, text := range []string{"starts", "ERROR: failed", "Traceback (most recent call last):", "INFO: goes on"} {
		l.writeText(text)
	}
	startForwarder(t, f, s.send, nil)
	testkit.Until(t, "four lines", func() bool { return len(s.texts(KindLog)) == 4 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, want := range []loglevel.Level{loglevel.Info, loglevel.Error, loglevel.Error, loglevel.Info} {
		if s.records[i].Level != want {
			t.Errorf("%q has level %v", s.records[i].Text, s.records[i].Level)
		}
	}
}

func TestAnEventHasALevelOfItsOwn(t *testing.T) {
	crash, asked := &client.Exit{Cause: "crash"}, &client.Exit{Cause: "operator"}
	for _, c := range []struct {
		event client.Event
		want  loglevel.Level
	}{
		{client.Event{FromState: "up", ToState: client.StateBackoff, Exit: crash}, loglevel.Error},
		{client.Event{FromState: "up", ToState: client.StateDown, Exit: asked}, loglevel.Info},
		{client.Event{FromState: "starting", ToState: client.StateFailed}, loglevel.Error},
		{client.Event{FromState: "waiting", ToState: client.StateBackoff}, loglevel.Warning},
		{client.Event{FromState: "starting", ToState: client.StateUp}, loglevel.Info},
	} {
		if got := eventRecord(c.event).Level; got != c.want {
			t.Errorf("%+v: %v, want %v", c.event, got, c.want)
		}
	}
}
