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
	// answerTimeout is the default time limit for an answer.
	answerTimeout = 10 * time.Second
	// slowAnswerTimeout is the time limit for an answer for which hinit must read many files.
	slowAnswerTimeout = time.Minute
	// maxEffectWait is the longest default time that hinit waits for the effect of a command.
	maxEffectWait = 40 * time.Second
	// maxReply is the maximum size of an answer in bytes. The limit exists because another program may listen on the socket.
	maxReply = 64 << 20
	// busyRetryPause is the pause between two attempts while hinit has too many connections.
	busyRetryPause = 100 * time.Millisecond
	// cutRetryTimeout is how long a request is repeated after its connection was cut.
	cutRetryTimeout = time.Second
)

// apiCall is one request of the control API.
type apiCall struct {
	action       string // Action for errors, after "cannot", such as "stop coder".
	method, path string
	body         any           // Body of the request; nil for none.
	mayRepeat    bool          // Whether the request may be sent more than once.
	limit        time.Duration // Time limit for the whole answer.
	acceptsBusy  bool          // Whether the caller accepts the answer that hinit is busy, so that the request is not repeated.
}

func get(doing, path string, query url.Values) apiCall {
	if text := query.Encode(); text != "" {
		path += "?" + text
	}
	return apiCall{action: doing, method: http.MethodGet, path: path, mayRepeat: true, limit: answerTimeout}
}

// boolParameter returns the values of a boolean query parameter.
func boolParameter(is bool) []string {
	if is {
		return []string{"1"}
	}
	return nil
}

// optionalParameter returns the values of a query parameter: none if value is zero, and otherwise the value.
func optionalParameter[T comparable](value T) []string {
	if value == *new(T) {
		return nil
	}
	return []string{fmt.Sprint(value)}
}

func post(doing, path string, body any) apiCall {
	return apiCall{action: doing, method: http.MethodPost, path: path, body: body, limit: answerTimeout}
}

// withLimit returns a copy of q with a time limit.
func (q apiCall) withLimit(limit time.Duration) apiCall {
	q.limit = limit
	return q
}

// repeatable returns a copy of q that may be sent more than once.
func (q apiCall) repeatable() apiCall {
	q.mayRepeat = true
	return q
}

// reply is a successful answer. The caller reads its body and calls close.
type reply struct {
	io.Reader
	header        http.Header
	clearDeadline func() // Removes the time limit for the body; only the caller's context then ends it.
	close         func() // Closes the connection; the caller must call it.
}

// stream calls fn for each JSON document of an answer. It returns at the end of the answer, or when fn returns an error.
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

// askService sends a request about a service. It puts the path of the service before the path of q. If the name can't be part of
// a URL path, the service is reported as unknown.
func (c *Client) askService(ctx context.Context, q apiCall, name string) (client.Service, error) {
	if name == "" || name == "." || name == ".." {
		message := fmt.Sprintf("no such profile or service %q; `hinit status` lists them", name)
		return client.Service{}, withAction(ctx, q, &client.Error{Kind: client.KindUnknown, Message: message})
	}
	q.path = "/v1/services/" + url.PathEscape(name) + q.path
	return ask[client.Service](ctx, c, q)
}

// ask sends a request and decodes the JSON of its answer.
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

// askWithoutResult sends a request whose answer has no content.
func (c *Client) askWithoutResult(ctx context.Context, q apiCall) error {
	r, err := c.send(ctx, q)
	if err == nil {
		r.close()
	}
	return err
}

// retryTime returns how long a request may be repeated after the error e; 0 forbids it. A busy hinit has not read the request, so
// it is safe to repeat the request. A hinit that was replaced (re-executed) may have carried out the request, so the request is
// repeated only with q.mayRepeat. The same is true of a cut connection: the program before a re-execution may have read the
// request.
func (c *Client) retryTime(q apiCall, e *client.Error) time.Duration {
	switch {
	case e.Kind == client.KindBusy && !q.acceptsBusy:
		return min(q.limit, answerTimeout)
	case e.Kind == client.KindReplaced && q.mayRepeat:
		return q.limit
	case e.ConnectionLost && q.mayRepeat:
		return min(q.limit, c.cutRetryTimeout)
	}
	return 0
}

// send sends a request, and repeats it as long as [Client.retryTime] allows.
func (c *Client) send(ctx context.Context, q apiCall) (*reply, error) {
	begin := time.Now()
	var cut *client.Error
	for {
		r, err := c.exchange(ctx, q)
		switch {
		case err == nil:
			return r, nil
		case err.ConnectionLost && cut == nil:
			begin = time.Now() // Count from now, because the first attempt may have waited long.
			cut = err
		case cut != nil && err.Kind == client.KindUnreachable && !err.ConnectionLost:
			return nil, withAction(ctx, q, cut) // hinit may have received the first attempt, so return the first error.
		}
		if time.Since(begin) > c.retryTime(q, err) {
			return nil, withAction(ctx, q, err)
		}
		select {
		case <-time.After(busyRetryPause):
		case <-ctx.Done():
			return nil, withAction(ctx, q, err)
		}
	}
}

// exchange sends one request on its own connection and reads the status and header of the answer.
func (c *Client) exchange(ctx context.Context, q apiCall) (*reply, *client.Error) {
	request, err := q.request(ctx)
	if err != nil {
		return nil, &client.Error{Kind: client.KindInternal, Message: err.Error(), Cause: err}
	}
	conn, fault := c.connect(ctx)
	if fault != nil {
		return nil, fault
	}
	_ = conn.SetDeadline(time.Now().Add(q.limit)) // On a broken connection, the next call reports the error.
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end := func() {
		unhook()
		_ = conn.Close() // The answer or its error is already known.
	}
	// A busy hinit sends an answer and closes the connection without reading the request. Then the write fails although an answer
	// has come.
	written := request.Write(conn)
	response, err := http.ReadResponse(bufio.NewReader(conn), request) //nolint:bodyclose // the body ends when the connection ends
	if err != nil {
		end()
		if written != nil {
			err = written
		}
		return nil, c.exchangeError(err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		defer end()
		return nil, c.decodeError(response)
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

func (c *Client) decodeError(response *http.Response) *client.Error {
	var e client.ErrorReply
	if err := json.NewDecoder(io.LimitReader(response.Body, maxReply)).Decode(&e); err != nil || e.Error.Kind == "" {
		return &client.Error{
			Kind:    client.KindInternal,
			Message: fmt.Sprintf("%q answers %q, but not as hinit does; is something else listening there?", c.Socket(), response.Status),
		}
	}
	return &e.Error
}

// exchangeError converts the error of an exchange to a *client.Error.
func (c *Client) exchangeError(err error) *client.Error {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return &client.Error{Kind: client.KindUnreachable, Message: fmt.Sprintf("hinit does not answer on %q", c.Socket()), Cause: err}
	case network != nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		message := fmt.Sprintf("hinit went away from %q while it was asked (%v)", c.Socket(), withoutAddress(err))
		return &client.Error{Kind: client.KindUnreachable, Message: message, Cause: err, ConnectionLost: true}
	}
	return &client.Error{Kind: client.KindInternal, Message: fmt.Sprintf("%q does not answer as hinit does (%v)", c.Socket(), err), Cause: err}
}

// WithoutAction returns an error without the failed action, for a message that already names the action.
func WithoutAction(err error) error {
	if clientErr, is := errors.AsType[*client.Error](err); is {
		return errors.New(clientErr.Message)
	}
	return err
}

// withAction adds the failed action to e. If the caller's context has ended, it returns the cause of that end instead.
func withAction(ctx context.Context, q apiCall, e *client.Error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("cannot %s: %w", q.action, context.Cause(ctx))
	}
	e.Action = q.action
	return e
}
