package dial

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

	"hinit/client"
)

const (
	// answerTime is the default time limit for an answer.
	answerTime = 10 * time.Second
	// workTime is the time limit for requests that make hinit read many files.
	workTime = time.Minute
	// longestWait is the longest default time for which the server waits for the effect of a command.
	longestWait = 40 * time.Second
	// maxReply limits the size of an answer. Any program may listen on the socket, not only hinit.
	maxReply = 64 << 20
	// busyPause is the pause before the next attempt when hinit has too many connections.
	busyPause = 100 * time.Millisecond
	// repeatTime limits how long a client repeats a request whose connection was cut.
	repeatTime = time.Second
)

// apiCall is one request to hinit.
type apiCall struct {
	doing        string // the action, in the words that follow "cannot" in an error
	method, path string
	body         any           // body of the request; nil for none
	repeats      bool          // the client may send the request more than once
	limit        time.Duration // time limit for the whole answer
	mayBeBusy    bool          // do not repeat the request if hinit is busy: that is already an answer
}

func get(doing, path string, query url.Values) apiCall {
	if text := query.Encode(); text != "" {
		path += "?" + text
	}
	return apiCall{doing: doing, method: http.MethodGet, path: path, repeats: true, limit: answerTime}
}

// on returns the values of the query parameter for a switch: "1" if the switch is on, and no value if it is off.
func on(is bool) []string {
	if is {
		return []string{"1"}
	}
	return nil
}

// unlessZero returns the values of a query parameter: the given value, or none if that is the zero value.
func unlessZero[T comparable](value T) []string {
	if value == *new(T) {
		return nil
	}
	return []string{fmt.Sprint(value)}
}

func post(doing, path string, body any) apiCall {
	return apiCall{doing: doing, method: http.MethodPost, path: path, body: body, limit: answerTime}
}

// within returns a copy of q with the given time limit.
func (q apiCall) within(limit time.Duration) apiCall {
	q.limit = limit
	return q
}

// reply is a successful answer. The body of the answer is not read yet.
type reply struct {
	io.Reader
	header        http.Header
	clearDeadline func() // removes the time limit, so that only the end of the caller's context ends the body
	close         func() // ends the connection; must be called
}

// stream calls fn for each JSON document of an answer. It returns at the end of the answer. If fn returns an error, stream ends
// early with this error.
func stream[T any](ctx context.Context, c *Client, q apiCall, fn func(T) error) error {
	r, err := c.send(ctx, q)
	if err != nil {
		return err
	}
	defer r.close()
	r.clearDeadline()
	for lines := json.NewDecoder(r); ; {
		var next T
		switch err := lines.Decode(&next); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return withAction(ctx, q, c.exchangeError(err))
		}
		if err := fn(next); err != nil {
			return err
		}
	}
}

// askService sends a request about one service. It appends q's path to the path of the service. It refuses names that can't be
// part of a URL path; no service has such a name.
func (c *Client) askService(ctx context.Context, q apiCall, name string) (client.Service, error) {
	switch name {
	case "", ".", "..":
		message := fmt.Sprintf("no such profile or service %q; `hinit status` lists them", name)
		return client.Service{}, withAction(ctx, q, &client.Error{Kind: client.KindUnknown, Message: message})
	}
	q.path = "/v1/services/" + url.PathEscape(name) + q.path
	return ask[client.Service](ctx, c, q)
}

// ask sends a request and decodes the answer.
func ask[T any](ctx context.Context, c *Client, q apiCall) (answer T, err error) {
	r, err := c.send(ctx, q)
	if err != nil {
		return answer, err
	}
	defer r.close()
	if err := json.NewDecoder(io.LimitReader(r, maxReply)).Decode(&answer); err != nil {
		return answer, withAction(ctx, q, c.exchangeError(err))
	}
	return answer, nil
}

// askNothing sends a request, and ignores the content of a successful answer.
func (c *Client) askNothing(ctx context.Context, q apiCall) error {
	r, err := c.send(ctx, q)
	if err == nil {
		r.close()
	}
	return err
}

// retryTime returns how long to repeat a failed request. If hinit was busy, it has not read the request. If hinit was replaced,
// it may have carried out the request, so the request is repeated only if q.repeats allows it. A cut connection is treated like a
// replaced hinit. The program before a re-execution may have had the request, and the program after it may answer the next
// attempt.
func (c *Client) retryTime(q apiCall, e *client.Error) time.Duration {
	switch {
	case e.Kind == client.KindBusy && !q.mayBeBusy:
		return min(q.limit, answerTime)
	case e.Kind == client.KindReplaced && q.repeats:
		return q.limit
	case e.Cut && q.repeats:
		return min(q.limit, c.cutTime)
	}
	return 0
}

// send sends a request on a new connection, and repeats it as long as [Client.retryTime] allows.
func (c *Client) send(ctx context.Context, q apiCall) (*reply, error) {
	begin := time.Now()
	var cut *client.Error
	for {
		r, err := c.exchange(ctx, q)
		switch {
		case err == nil:
			return r, nil
		case err.Cut && cut == nil:
			begin = time.Now() // count from now, because the request may have waited long for its answer
			cut = err
		case cut != nil && err.Kind == client.KindUnreachable && !err.Cut:
			return nil, withAction(ctx, q, cut) // hinit took the first attempt, so the cut is the better error
		}
		if time.Since(begin) > c.retryTime(q, err) {
			return nil, withAction(ctx, q, err)
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return nil, withAction(ctx, q, err)
		}
	}
}

// exchange sends one request on its own connection and reads the head of the answer. It accepts an answer that hinit sent before
// it had read the request.
func (c *Client) exchange(ctx context.Context, q apiCall) (*reply, *client.Error) {
	request, err := q.request(ctx)
	if err != nil {
		return nil, &client.Error{Kind: client.KindInternal, Message: err.Error(), Cause: err}
	}
	conn, fault := c.connect(ctx)
	if fault != nil {
		return nil, fault
	}
	_ = conn.SetDeadline(time.Now().Add(q.limit)) // fails only on a closed connection, and then the next call fails too
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end := func() {
		unhook()
		_ = conn.Close() // the server has answered the request
	}
	// A busy hinit answers and closes without reading. Then the write fails, but an answer has arrived.
	written := request.Write(conn)
	response, err := http.ReadResponse(bufio.NewReader(conn), request) //nolint:bodyclose // it ends with its connection
	if err != nil {
		end()
		if written != nil {
			err = written
		}
		return nil, c.exchangeError(err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		defer end()
		return nil, c.refusal(response)
	}
	return &reply{Reader: response.Body, header: response.Header, close: end, clearDeadline: func() { _ = conn.SetDeadline(time.Time{}) }}, nil
}

func (q apiCall) request(ctx context.Context) (*http.Request, error) {
	var content io.Reader
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, "http://hinit"+q.path, content)
	if err == nil {
		r.Close = true
	}
	return r, err
}

func (c *Client) refusal(response *http.Response) *client.Error {
	var e client.ErrorReply
	if err := json.NewDecoder(io.LimitReader(response.Body, maxReply)).Decode(&e); err != nil || e.Error.Kind == "" {
		return &client.Error{
			Kind:    client.KindInternal,
			Message: fmt.Sprintf("%q answers %q, but not as hinit does; is something else listening there?", c.Socket(), response.Status),
		}
	}
	return &e.Error
}

// exchangeError turns the error of a failed exchange into a *client.Error.
func (c *Client) exchangeError(err error) *client.Error {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return &client.Error{Kind: client.KindUnreachable, Message: fmt.Sprintf("hinit does not answer on %q", c.Socket()), Cause: err}
	case network != nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		message := fmt.Sprintf("hinit went away from %q while it was asked (%v)", c.Socket(), reason(err))
		return &client.Error{Kind: client.KindUnreachable, Message: message, Cause: err, Cut: true}
	}
	return &client.Error{Kind: client.KindInternal, Message: fmt.Sprintf("%q does not answer as hinit does (%v)", c.Socket(), err), Cause: err}
}

// Reason returns err without the failed action, if hinit or this package has returned it.
func Reason(err error) error {
	if said, is := errors.AsType[*client.Error](err); is {
		return errors.New(said.Message)
	}
	return err
}

// withAction adds the failed action to the error e. If the caller's context has ended, it returns the context's cause instead.
func withAction(ctx context.Context, q apiCall, e *client.Error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("cannot %s: %w", q.doing, context.Cause(ctx))
	}
	e.Doing = q.doing
	return e
}
