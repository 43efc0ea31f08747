package control

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"

	"hinit/client"
)

// Order carries out "stop NAME", "start NAME", "restart NAME" or "status" as hinit's own user, and returns the command line's
// words. It blocks like the request that it stands for.
func (s *Server) Order(ctx context.Context, order string) string {
	words := strings.Fields(order)
	method, target := http.MethodPost, ""
	switch {
	case len(words) == 1 && words[0] == "status":
		method, target = http.MethodGet, "/v1/status?as=table"
	case len(words) == 2 && isVerb(words[0]):
		target = "/v1/services/" + url.PathEscape(words[1]) + "/" + words[0]
	default:
		return "it is none of: stop NAME, start NAME, restart NAME, status"
	}
	ctx = context.WithValue(ctx, peerKey{}, peer{pid: fifoPID, uid: s.policy.self})
	r, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return err.Error()
	}
	r.Header.Set("Accept", client.Text)
	var out recorder
	s.serve(&out, r)
	return strings.TrimSpace(out.String())
}

func isVerb(word string) bool {
	_, known := effects[client.Verb(word)]
	return known
}

// recorder is an http.ResponseWriter in memory.
type recorder struct {
	bytes.Buffer
	header http.Header
}

func (w *recorder) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

func (w *recorder) WriteHeader(int) {}
