package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// poster sends JSON over HTTP.
type poster struct {
	url, authorization, host string
	client                   http.Client
	encode                   func(host string, records []Record) any
	check                    func(answer []byte) error // what a good answer says; nil: nothing
}

// Send implements Sink.
func (p *poster) Send(ctx context.Context, records []Record) error {
	body, err := json.Marshal(p.encode(p.host, records))
	if err != nil {
		return &RefusedError{err.Error()}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if p.authorization != "" {
		r.Header.Set("Authorization", p.authorization)
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return explained(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	said := fmt.Errorf("the receiver answers %s: %s", answer.Status, strings.TrimSpace(string(text)))
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300 && err == nil && p.check != nil:
		return p.check(text)
	case code >= 200 && code < 300:
		return err // an answer that is cut off is none
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return &RefusedError{fmt.Sprintf("%s: %s", answer.Status, strings.TrimSpace(string(text)))}
	}
	if after := retryAfter(answer.Header.Get("Retry-After"), time.Now()); after > 0 {
		return &LaterError{after, said}
	}
	return said
}

// retryAfter is how long a header Retry-After asks to wait, in seconds or until a date (RFC 9110, 10.2.3); 0 for nothing.
func retryAfter(text string, now time.Time) time.Duration {
	if s, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// otlpAnswer reads what a receiver has left out (ExportLogsServiceResponse).
func otlpAnswer(text []byte) error {
	var answer struct {
		PartialSuccess struct {
			RejectedLogRecords json.RawMessage // a number, or as the mapping of 64 bits to JSON wants it a string
			ErrorMessage       string
		}
	}
	if json.Unmarshal(text, &answer) != nil {
		return nil // it has taken them, and says so in another way
	}
	partial := answer.PartialSuccess
	n, err := strconv.Atoi(strings.Trim(string(partial.RejectedLogRecords), `"`))
	if err != nil && partial.ErrorMessage == "" || err == nil && n <= 0 && partial.ErrorMessage == "" {
		return nil
	}
	return &PartialError{max(n, 0), partial.ErrorMessage}
}

// Close implements Sink.
func (p *poster) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

type object = map[string]any

// attribute is one of OTLP (opentelemetry-proto, common.proto, in the JSON mapping).
func attribute(key, value string) object {
	return object{"key": key, "value": object{"stringValue": value}}
}

func byService(records []Record) (order [][2]string, of map[[2]string][]Record) {
	of = make(map[[2]string][]Record)
	for _, r := range records {
		key := [2]string{r.Service, r.Profile}
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], r)
	}
	return order, of
}

// otlp is a request to export logs (ExportLogsServiceRequest).
func otlp(host string, records []Record) any {
	now := strconv.FormatInt(time.Now().UnixNano(), 10)
	var resources []object
	order, of := byService(records)
	for _, key := range order {
		name := key[0]
		if name == "" {
			name = "hinit"
		}
		resource := []object{attribute("service.name", name), attribute("service.namespace", "hinit"), attribute("host.name", host)}
		if key[1] != "" {
			resource = append(resource, attribute("hinit.profile", key[1]))
		}
		var list []object
		for _, r := range of[key] {
			list = append(list, object{
				"timeUnixNano": strconv.FormatInt(r.Time.UnixNano(), 10), "observedTimeUnixNano": now, "body": object{"stringValue": r.Text},
				"attributes": []object{attribute("hinit.kind", r.Kind)},
			})
		}
		resources = append(resources, object{
			"resource": object{"attributes": resource}, "scopeLogs": []object{{"scope": object{"name": "hinit"}, "logRecords": list}},
		})
	}
	return object{"resourceLogs": resources}
}

// loki is a push request.
func loki(host string, records []Record) any {
	type key struct{ service, profile, kind string }
	var order []key
	of := make(map[key][][2]string)
	for _, r := range records {
		k := key{r.Service, r.Profile, r.Kind}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], [2]string{strconv.FormatInt(r.Time.UnixNano(), 10), r.Text})
	}
	var streams []object
	for _, k := range order {
		labels := map[string]string{"job": "hinit", "host": host, "kind": k.kind}
		if k.service != "" {
			labels["service"] = k.service
		}
		if k.profile != "" {
			labels["profile"] = k.profile
		}
		streams = append(streams, object{"stream": labels, "values": of[k]})
	}
	return object{"streams": streams}
}
