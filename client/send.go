package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

type question struct {
	doing        string // what it is for, after "cannot"
	method, path string
	query        url.Values
	body         any           // nil for none
	repeats      bool          // it may be asked twice
	limit        time.Duration // for the whole answer; 0 is answerTime
}

// reply is a good answer with an unread body.
type reply struct {
	io.Reader
	header    http.Header
	unlimited func() // lifts the time limit, so that only the caller's context ends the body
	close     func() // must be called
}

// busyPause is the pause before the next attempt after a refusal for lack of room.
const busyPause = 100 * time.Millisecond

// cutTime is how long a question is repeated whose connection was cut.
const cutTime = time.Second

// patience returns how long a question that failed is repeated. A busy hinit has not read it. A replaced one may have, so only
// questions that may be repeated are. A cut connection may have been to an old image; the next attempt tells.
func (c *Client) patience(q question, e *Error) time.Duration {
	repeats := q.repeats || q.method == http.MethodGet
	switch {
	case e.Kind == KindBusy:
		return min(q.limit, answerTime)
	case e.Kind == KindReplaced && repeats:
		return q.limit
	case e.cut && repeats:
		return min(q.limit, c.cutTime)
	}
	return 0
}

// send asks a question on a new connection, and repeats it where that is right.
func (c *Client) send(ctx context.Context, q question) (*reply, *Error) {
	if q.limit == 0 {
		q.limit = answerTime
	}
	begin := time.Now()
	var cut *Error
	for {
		r, err := c.exchange(ctx, q)
		switch {
		case err == nil:
			return r, nil
		case err.cut && cut == nil:
			begin = time.Now() // it may have waited long for its answer
			cut = err
		case cut != nil && err.Kind == KindUnreachable && !err.cut:
			return nil, cut // it was there before it went
		}
		if time.Since(begin) > c.patience(q, err) {
			return nil, err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// exchange makes one request. The connection is not reused, so nothing has to be kept alive, and an answer from before hinit has
// read anything counts.
func (c *Client) exchange(ctx context.Context, q question) (*reply, *Error) {
	request, err := q.request(ctx)
	if err != nil {
		return nil, &Error{Kind: KindInternal, Message: err.Error(), cause: err}
	}
	conn, fault := c.connection(ctx)
	if fault != nil {
		return nil, fault
	}
	_ = conn.SetDeadline(time.Now().Add(q.limit)) // fails only on a closed connection, which the next call tells
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end := func() {
		unhook()
		_ = conn.Close() // what was written was answered
	}
	// A busy hinit answers and closes without reading: the write fails, but the answer is there.
	written := request.Write(conn)
	response, err := http.ReadResponse(bufio.NewReader(conn), request) //nolint:bodyclose // it ends with its connection
	if err != nil {
		end()
		if written != nil {
			err = written
		}
		return nil, c.broken(err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		defer end()
		return nil, c.refusal(response)
	}
	return &reply{
		Reader: response.Body, header: response.Header, close: end,
		unlimited: func() { _ = conn.SetDeadline(time.Time{}) },
	}, nil
}

func (q question) request(ctx context.Context) (*http.Request, error) {
	target := "http://hinit" + q.path
	if query := q.query.Encode(); query != "" {
		target += "?" + query
	}
	var content io.Reader
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, target, content)
	if err == nil {
		r.Close = true
	}
	return r, err
}

func (c *Client) refusal(response *http.Response) *Error {
	var e ErrorReply
	if err := json.NewDecoder(io.LimitReader(response.Body, maxReply)).Decode(&e); err != nil || e.Error.Kind == "" {
		return &Error{
			Kind:    KindInternal,
			Message: fmt.Sprintf("%q answers %q, but not as hinit does; is something else listening there?", c.socket, response.Status),
		}
	}
	return &e.Error
}

// broken explains a broken exchange.
func (c *Client) broken(err error) *Error {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return &Error{Kind: KindUnreachable, Message: fmt.Sprintf("hinit does not answer on %q", c.socket), cause: err}
	case network != nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		message := fmt.Sprintf("hinit went away from %q while it was asked (%v)", c.socket, reason(err))
		return &Error{Kind: KindUnreachable, Message: message, cause: err, cut: true}
	}
	return &Error{Kind: KindInternal, Message: fmt.Sprintf("%q does not answer as hinit does (%v)", c.socket, err), cause: err}
}

// explain adds the object to an error, or returns the end of the caller's context.
func explain(ctx context.Context, q question, e *Error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("cannot %s: %w", q.doing, context.Cause(ctx))
	}
	e.doing = q.doing
	return e
}
