package forward

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/loglevel"
)

// The kinds of a [Record].
const (
	KindLog   = "log"
	KindEvent = "event"
	KindGap   = "gap" // lines or events are missing here
)

// Record is one item to send: a line of a log, an event, or a note about a gap.
type Record struct {
	Time    time.Time      `json:"time"`
	Kind    string         `json:"kind"`
	Service string         `json:"service"`
	Profile string         `json:"profile,omitempty"`
	Text    string         `json:"message"`
	Level   loglevel.Level `json:"level"`

	log           *logFile      // log from which the record comes; nil for an event
	linePosition  position      // position in the log after this record
	eventPosition eventPosition // position in the events after this record
}

// gapRecord returns a record about missing lines or events, with the reason.
func gapRecord(why string) Record {
	return Record{Time: time.Now(), Kind: KindGap, Text: "[hinit-web] lines are missing here: " + why, Level: loglevel.Warning}
}

// eventRecord returns the record of an event. Its level is error if a run has failed or the service will not start again, and
// warning if the service waits for its next start.
func eventRecord(e client.Event) Record {
	r := Record{Time: e.At, Kind: KindEvent, Level: loglevel.Info, Service: e.Service, Text: e.Reason}
	if e.ToState != "" {
		r.Text = e.FromState + " -> " + e.ToState + ": " + e.Reason
	}
	switch {
	case e.ToState == client.StateFailed, e.ToState == client.StateParked,
		e.Exit != nil && !slices.Contains([]string{"clean", "operator", "shutdown", "replaced"}, e.Exit.Cause):
		r.Level = loglevel.Error
	case e.ToState == client.StateBackoff:
		r.Level = loglevel.Warning
	}
	return r
}

type jsonObject = map[string]any

func nanoseconds(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// severities maps a level to the severities of OTLP and syslog. The severity for OTLP is the first SeverityNumber in the range of
// the level. RFC 5424, section 6.2.1, defines the severities of syslog.
var severities = [...]struct{ otlp, syslog int }{
	{9, 6}, loglevel.Trace: {1, 7}, loglevel.Debug: {5, 7}, loglevel.Info: {9, 6}, loglevel.Warning: {13, 4}, loglevel.Error: {17, 3}, loglevel.Critical: {21, 2},
}

// attributes converts values to attributes of OTLP (opentelemetry-proto, common.proto, in the JSON mapping). It leaves out empty
// values.
func attributes(values map[string]string) []jsonObject {
	return lo.MapToSlice(lo.OmitByValues(values, []string{""}), func(key, value string) jsonObject {
		return jsonObject{"key": key, "value": jsonObject{"stringValue": value}}
	})
}

// containerService is the service name in records of events about the whole container.
const containerService = "hinit"

// encodeOTLP encodes records as an OTLP request to export logs (ExportLogsServiceRequest).
func encodeOTLP(host string, records []Record) []byte {
	now := nanoseconds(time.Now())
	groups := lo.PartitionBy(records, func(r Record) [2]string { return [2]string{r.Service, r.Profile} })
	body, _ := json.Marshal(jsonObject{"resourceLogs": lo.Map(groups, func(group []Record, _ int) jsonObject {
		resource := map[string]string{
			"service.name": cmp.Or(group[0].Service, containerService), "service.namespace": "hinit", "host.name": host, "hinit.profile": group[0].Profile,
		}
		return jsonObject{"resource": jsonObject{"attributes": attributes(resource)}, "scopeLogs": []jsonObject{{
			"scope": jsonObject{"name": "hinit"}, "logRecords": lo.Map(group, func(r Record, _ int) jsonObject {
				return jsonObject{
					"timeUnixNano": nanoseconds(r.Time), "observedTimeUnixNano": now, "body": jsonObject{"stringValue": r.Text},
					"severityNumber": severities[r.Level].otlp, "severityText": r.Level.String(), "attributes": attributes(map[string]string{"hinit.kind": r.Kind}),
				}
			}),
		}}}
	})})
	return body
}

// encodeLoki encodes records as a push request of Loki.
func encodeLoki(host string, records []Record) []byte {
	groups := lo.PartitionBy(records, func(r Record) Record {
		return Record{Kind: r.Kind, Level: r.Level, Service: r.Service, Profile: r.Profile}
	})
	body, _ := json.Marshal(jsonObject{"streams": lo.Map(groups, func(group []Record, _ int) jsonObject {
		r := &group[0]
		labels := map[string]string{"job": "hinit", "host": host, "kind": r.Kind, "level": r.Level.String(), "service": r.Service, "profile": r.Profile}
		return jsonObject{
			"stream": lo.OmitByValues(labels, []string{""}),
			"values": lo.Map(group, func(r Record, _ int) [2]string { return [2]string{nanoseconds(r.Time), r.Text} }),
		}
	})})
	return body
}

// encodeSyslog encodes a record in the format of RFC 5424, with the facility daemon. An ordinary event has the severity notice.
func encodeSyslog(host string, r *Record) []byte {
	severity := lo.Ternary(r.Kind == KindEvent && r.Level == loglevel.Info, 5, severities[r.Level].syslog)
	return fmt.Appendf(nil, "<%d>1 %s %s %s - %s [hinit@32473 profile=\"%s\"] %s", 3*8+severity, r.Time.UTC().Format("2006-01-02T15:04:05.000000Z"),
		syslogField(host, 255), syslogField(cmp.Or(r.Service, containerService), 48), syslogField(r.Kind, 32),
		strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`).Replace(r.Profile), strings.NewReplacer("\n", " ", "\x00", " ").Replace(r.Text))
}

var unprintable = regexp.MustCompile(`[^!-~]`)

// syslogField replaces every character except printable ASCII without spaces, and cuts the text to most bytes. An empty text
// becomes "-".
func syslogField(text string, most int) string {
	out := unprintable.ReplaceAllString(text, "_")
	return cmp.Or(out[:min(len(out), most)], "-")
}
