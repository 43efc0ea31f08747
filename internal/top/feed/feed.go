// Package feed reads the sources of hinit top: the status and the events of hinit as streams, the logs on the volume, and /proc
// for the services' processes. It asks PID 1 for names and process numbers only, once, and then follows the changes.
//
// Its functions block until their context ends, and report to functions in the caller's goroutine; the package starts goroutines in
// Log only. Nothing here is escaped. A [Feed] may be used by several goroutines.
package feed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/pause"
	"hinit/internal/s6/formats"
)

// Feed is the way to one hinit. Make it with Open or OpenSocket.
type Feed struct {
	env    func(string) (string, bool)
	socket string // that was named; "" for the init of this container
	client atomic.Pointer[client.Client]
	status atomic.Pointer[client.Status] // the newest
}

// Open finds the running hinit, by the environment. It blocks as [client.Dial] does, whose errors it returns.
func Open(env func(string) (string, bool)) (*Feed, error) {
	f := &Feed{env: env}
	if err := f.dial(); err != nil {
		return nil, err
	}
	return f, nil
}

// OpenSocket returns the feed of the hinit that listens on a socket. Nothing is asked yet.
func OpenSocket(env func(string) (string, bool), socket string) *Feed {
	f := &Feed{env: env, socket: socket}
	f.client.Store(client.New(socket))
	return f
}

func (f *Feed) dial() error {
	if f.socket != "" {
		return nil // each question connects anew
	}
	cl, err := client.Find(config.Socket(config.Options{Env: f.env}), f.env)
	if err != nil {
		return err
	}
	f.client.Store(cl)
	return nil
}

// Once asks for the status once.
func (f *Feed) Once(ctx context.Context) (client.Status, error) { return f.client.Load().Status(ctx) }

// retry is the pause before hinit is asked again that did not answer.
const retry = 250 * time.Millisecond

// Status follows the status, over the end of hinit and its re-executions, until ctx ends.
func (f *Feed) Status(ctx context.Context, change func(client.StatusChange), lost func(error)) {
	var st client.Status
	f.again(ctx, lost, func(cl *client.Client) error {
		return cl.Watch(ctx, func(c client.StatusChange) error {
			c.Apply(&st)
			now := st
			f.status.Store(&now)
			change(c)
			return nil
		})
	})
}

// Events follows the events, the last so many first, until ctx ends.
func (f *Feed) Events(ctx context.Context, last int, event func(client.Event)) {
	seen := uint64(0)
	f.again(ctx, func(error) {}, func(cl *client.Client) error {
		o := client.EventOptions{Follow: true, Since: seen}
		if seen == 0 {
			o.Last = last
		}
		err := cl.Events(ctx, o, func(e client.Event) error {
			seen = max(seen, e.Seq)
			event(e)
			return nil
		})
		if errors.Is(err, client.ErrBadRequest) {
			seen = 0 // another hinit, which counts from 1
		}
		return err
	})
}

// again calls ask until ctx ends. Between two calls hinit was gone, or has become another image of itself.
func (f *Feed) again(ctx context.Context, lost func(error), ask func(*client.Client) error) {
	for ctx.Err() == nil {
		err := ask(f.client.Load())
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			lost(reason(err))
		}
		pause.For(ctx, retry)
		if errors.Is(err, client.ErrUnreachable) {
			_ = f.dial() // it may listen elsewhere; else the next question says why it does not answer
		}
	}
}

// reason is what an error says without what was asked.
func reason(err error) error {
	if said := (*client.Error)(nil); errors.As(err, &said) {
		return errors.New(said.Message)
	}
	return err
}

// Do carries out an order, and returns when it has come about or can't.
func (f *Feed) Do(ctx context.Context, verb client.Verb, name string) error {
	_, err := f.client.Load().Order(ctx, verb, name, client.Wait{Wait: true})
	return err
}

// Signal sends a signal, which has the name or number of word.
func (f *Feed) Signal(ctx context.Context, name, word string) error {
	number, known := formats.ParseSignal(word)
	if !known {
		return fmt.Errorf("%q is no signal; write a name such as HUP or a number from 1 to 64", word)
	}
	_, err := f.client.Load().Signal(ctx, name, syscall.Signal(number))
	return err
}

// Save writes a text to a new file. A file or a link that is there already is not touched.
func Save(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}
