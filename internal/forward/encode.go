package forward

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hinit/internal/loglevel"
)

type object = map[string]any

// grouped groups records by their key. order has the keys in the order of their first records.
func grouped[K comparable](records []Record, key func(*Record) K) (order []K, of map[K][]*Record) {
	of = make(map[K][]*Record)
	for i := range records {
		k := key(&records[i])
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], &records[i])
	}
	return order, of
}

func nanoseconds(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// numbers has, by level, the severities of OTLP (SeverityNumber: the first number of each range) and of syslog (RFC 5424, 6.2.1).
var numbers = [...]struct{ otlp, syslog int }{
	{9, 6}, loglevel.Trace: {1, 7}, loglevel.Debug: {5, 7}, loglevel.Info: {9, 6}, loglevel.Warning: {13, 4}, loglevel.Error: {17, 3}, loglevel.Critical: {21, 2},
}

// attribute returns an attribute of OTLP (opentelemetry-proto, common.proto, in the JSON mapping).
func attribute(key, value string) object {
	return object{"key": key, "value": object{"stringValue": value}}
}

// container is the service name in events of the container.
const container = "hinit"

// otlp encodes a request to export logs (ExportLogsServiceRequest).
func otlp(host string, records []Record) ([]byte, error) {
	now := nanoseconds(time.Now())
	var resources []object
	order, of := grouped(records, func(r *Record) [2]string { return [2]string{cmp.Or(r.Service, container), r.Profile} })
	for _, key := range order {
		resource := []object{attribute("service.name", key[0]), attribute("service.namespace", "hinit"), attribute("host.name", host)}
		if key[1] != "" {
			resource = append(resource, attribute("hinit.profile", key[1]))
		}
		var list []object
		for _, r := range of[key] {
			list = append(list, object{
				"timeUnixNano": nanoseconds(r.Time), "observedTimeUnixNano": now, "body": object{"stringValue": r.Text},
				"severityNumber": numbers[r.Level].otlp, "severityText": r.Level.String(), "attributes": []object{attribute("hinit.kind", r.Kind)},
			})
		}
		resources = append(resources, object{
			"resource": object{"attributes": resource}, "scopeLogs": []object{{"scope": object{"name": "hinit"}, "logRecords": list}},
		})
	}
	return json.Marshal(object{"resourceLogs": resources})
}

// loki encodes a push request.
func loki(host string, records []Record) ([]byte, error) {
	type stream struct {
		Job     string `json:"job"`
		Host    string `json:"host"`
		Kind    string `json:"kind"`
		Level   string `json:"level"`
		Service string `json:"service,omitempty"`
		Profile string `json:"profile,omitempty"`
	}
	var streams []object
	order, of := grouped(records, func(r *Record) stream { return stream{"hinit", host, r.Kind, r.Level.String(), r.Service, r.Profile} })
	for _, labels := range order {
		var values [][2]string
		for _, r := range of[labels] {
			values = append(values, [2]string{nanoseconds(r.Time), r.Text})
		}
		streams = append(streams, object{"stream": labels, "values": values})
	}
	return json.Marshal(object{"streams": streams})
}

// syslog encodes a record in the form of RFC 5424: facility daemon; an ordinary event has the severity notice.
func syslog(host string, r *Record) []byte {
	severity := numbers[r.Level].syslog
	if r.Kind == KindEvent && r.Level == loglevel.Info {
		severity = 5
	}
	return fmt.Appendf(nil, "<%d>1 %s %s %s - %s [hinit@32473 profile=\"%s\"] %s", 3*8+severity, r.Time.UTC().Format("2006-01-02T15:04:05.000000Z"),
		word(host, 255), word(cmp.Or(r.Service, container), 48), word(r.Kind, 32), strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`).Replace(r.Profile),
		strings.NewReplacer("\n", " ", "\x00", " ").Replace(r.Text))
}

// word returns a text as PRINTUSASCII without spaces.
func word(text string, most int) string {
	out := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, text)
	if out == "" {
		return "-"
	}
	return out[:min(len(out), most)]
}
