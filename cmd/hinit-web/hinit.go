package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/account"
	"hinit/internal/boot/lookup"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/usage"
)

// hinit is a client of this container's hinit. It finds a hinit that starts later or listens at another path. It has the methods of
// [dial.Client], and any number of goroutines may call them.
type hinit struct {
	env func(string) (string, bool)

	mu   sync.Mutex
	last *dial.Client
}

// client returns a client for the socket that answered last. If none has answered yet, it looks for a socket.
func (h *hinit) client() (*dial.Client, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		return h.last, nil
	}
	cl, err := dial.Find(config.Socket(config.Options{Env: h.env}), h.env)
	if err == nil {
		h.last = cl
	}
	return cl, err
}

// isolates reports whether hinit has isolated profiles. It reads the list that hinit writes for the exec shim.
func (h *hinit) isolates() bool {
	cl, err := h.client()
	if err != nil {
		return false
	}
	info, err := os.Stat(filepath.Join(filepath.Dir(cl.Socket()), account.Isolated))
	return err == nil && info.Size() > 0
}

// ask calls fn with a client. If the socket does not answer, the next call looks for another one.
func (h *hinit) ask(fn func(*dial.Client) error) error {
	cl, err := h.client()
	if err != nil {
		return err
	}
	if err = fn(cl); errors.Is(err, client.ErrUnreachable) {
		h.mu.Lock()
		h.last = nil
		h.mu.Unlock()
	}
	return err
}

// proc returns the path of the /proc that shows hinit's processes, or "".
func (h *hinit) proc(i client.Init) string {
	cl, err := h.client()
	if err != nil {
		return ""
	}
	return usage.Root(cl.Socket(), i.PID)
}

// logsAs returns the identity with which this program opens hinit's log files.
func (h *hinit) logsAs(i client.Init) (*fsutil.Actor, error) {
	return lookup.LogReader(i.Plain != "", h.env)
}

func (h *hinit) Status(ctx context.Context, names ...string) (st client.Status, err error) {
	err = h.ask(func(cl *dial.Client) error {
		st, err = cl.Status(ctx, names...)
		return err
	})
	return st, err
}

func (h *hinit) Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error {
	return h.ask(func(cl *dial.Client) error { return cl.Events(ctx, o, fn) })
}

func (h *hinit) Watch(ctx context.Context, fn func(client.StatusChange) error) error {
	return h.ask(func(cl *dial.Client) error { return cl.Watch(ctx, fn) })
}

func (h *hinit) Order(ctx context.Context, verb client.Verb, name string, wait client.Wait) (s client.Service, err error) {
	err = h.ask(func(cl *dial.Client) error {
		s, err = cl.Order(ctx, verb, name, wait)
		return err
	})
	return s, err
}
