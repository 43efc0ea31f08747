package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

func refuse(kind client.Kind, format string, args ...any) *client.Error {
	return &client.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// httpStatus returns the HTTP status code for a kind of error.
func httpStatus(kind client.Kind) int {
	status := map[client.Kind]int{
		client.KindUnknown: http.StatusNotFound, client.KindNotAllowed: http.StatusForbidden, client.KindBadRequest: http.StatusBadRequest,
		client.KindStopping: http.StatusServiceUnavailable, client.KindBusy: http.StatusServiceUnavailable, client.KindReplaced: http.StatusServiceUnavailable,
		client.KindTimeout: http.StatusGatewayTimeout, client.KindFailed: http.StatusConflict, client.KindPermanent: http.StatusConflict,
	}[kind]
	return cmp.Or(status, http.StatusInternalServerError)
}

// clientError turns the error from a handler into the error that the client gets.
func clientError(ctx context.Context, err error) *client.Error {
	var e *client.Error
	if errors.As(err, &e) {
		return e
	}
	kind := client.KindFailed
	switch {
	case errors.Is(err, supervisor.ErrUnknown):
		kind = client.KindUnknown
	case errors.Is(err, supervisor.ErrStopping):
		kind = client.KindStopping
	case errors.As(context.Cause(ctx), &e): // the server is closed
		return e
	case errors.Is(err, context.DeadlineExceeded):
		kind = client.KindTimeout
	}
	return &client.Error{Kind: kind, Message: err.Error()}
}

// kindOf returns the kind of an error, or "" if err is no [client.Error].
func kindOf(err error) client.Kind {
	if e, is := errors.AsType[*client.Error](err); is {
		return e.Kind
	}
	return ""
}

// reply is a handler's answer: a body, or a stream that writes its own body.
type reply struct {
	status   int
	header   http.Header // additional headers; the content type is JSON unless it is set here
	body     []byte
	deferred any // value that is encoded as the body when the budget has room for it, see answerLater
	stream   func(w http.ResponseWriter)
	fault    *client.Error // the error in the body, if the reply is an error
	sent     func()        // called when the body has been sent; may be nil
}

func answer(v any) (reply, error) { return withStatus(http.StatusOK, v) }

func withStatus(status int, v any) (reply, error) {
	var body bytes.Buffer
	if err := encoder(&body).Encode(v); err != nil {
		return reply{}, refuse(client.KindInternal, "hinit cannot write its answer as JSON: %v", err)
	}
	return reply{status: status, body: body.Bytes()}, nil
}

// answerLater returns an answer whose JSON is encoded only when the answerBudget has room for it. Otherwise many clients that
// don't read their answers could fill the memory.
func answerLater(status int, v any, err error) (reply, error) {
	return reply{status: status, deferred: v}, err
}

// encoder returns an encoder that writes one line of JSON per value, without HTML escapes.
func encoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}

func failure(e *client.Error) reply {
	out, _ := withStatus(httpStatus(e.Kind), client.ErrorReply{Error: *e}) // a struct of two strings always encodes
	out.fault = e
	return out
}

// wantsText reports whether the client asks for text instead of JSON.
func wantsText(r *http.Request) bool { return r.Header.Get("Accept") == client.Text }

// text returns an answer as text for people. It escapes characters that would control a terminal.
func text(status int, header http.Header, body []byte) reply {
	header.Set("Content-Type", client.Text+"; charset=utf-8")
	return reply{status: status, header: header, body: []byte(show.Text(string(body)))}
}

// inWords returns an error as text, with its kind in a header, if the client asks for text. It returns any other answer
// unchanged.
func (out reply) inWords(r *http.Request) reply {
	if out.fault == nil || !wantsText(r) {
		return out
	}
	return text(out.status, http.Header{client.ErrorHeader: {string(out.fault.Kind)}}, []byte(out.fault.Message))
}

// send writes an answer to the client, unless the answer is a stream.
func (s *Server) send(w http.ResponseWriter, out reply) {
	h := w.Header()
	if out.body != nil {
		h.Set("Content-Type", "application/json")
		maps.Copy(h, out.header)
		h.Set("Content-Length", strconv.Itoa(len(out.body)))
	}
	if out.status >= http.StatusBadRequest {
		h.Set("Connection", "close")
	}
	s.allowWrite(w)
	w.WriteHeader(out.status)
	_, _ = w.Write(out.body) // a client that is gone needs no answer
}

// allowWrite sets the deadline for the next write to the client.
func (s *Server) allowWrite(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.sendTime)) // never fails on a real connection
}
