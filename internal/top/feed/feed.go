// Package feed reads the sources of hinit top: the status and the events of hinit as streams, the logs on the volume, and the
// services' processes in /proc. It asks PID 1 for all names and process ids once, and then only follows the changes.
//
// Its functions block until their context ends, and report to functions in the caller's goroutine. The package starts goroutines in
// Log only. It escapes no text. Several goroutines may use a [Feed].
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
	"hinit/client/dial"
	"hinit/internal/config"
	"hinit/internal/pause"
	"hinit/internal/s6/formats"
)

// Feed reads the sources of one hinit. Make it with Open or OpenSocket.
type Feed struct {
	env    func(string) (string, bool)
	here   bool // it is the init of this container
	client *dial.Client
	status atomic.Pointer[client.Status] // newest status
}

// Open finds the running hinit with the help of the environment. It blocks and fails as [dial.Dial] does. The feed follows a
// hinit that later changes its socket.
func Open(env func(string) (string, bool)) (*Feed, error) {
	f := &Feed{env: env, here: true, client: dial.Here(config.Socket(config.Options{Env: env}), env)}
	return f, f.client.Reach()
}

// OpenSocket returns the feed of the hinit that listens on a socket. It does not connect.
func OpenSocket(env func(string) (string, bool), socket string) *Feed {
	return &Feed{env: env, client: dial.New(socket)}
}

// Once returns the present status.
func (f *Feed) Once(ctx context.Context) (client.Status, error) { return f.client.Status(ctx) }

// retry is the pause before the next request to a hinit that has not answered.
const retry = 250 * time.Millisecond

// Status follows the status until ctx ends, also when hinit ends or re-executes. It calls change for each change, and lost for each
// failure.
func (f *Feed) Status(ctx context.Context, change func(client.StatusChange), lost func(error)) {
	var st client.Status
	f.again(ctx, lost, func() error {
		return f.client.Watch(ctx, func(c client.StatusChange) error {
			c.Apply(&st)
			now := st
			f.status.Store(&now)
			change(c)
			return nil
		})
	})
}

// Events follows the events until ctx ends. It begins with the last events of the past; last is their number.
func (f *Feed) Events(ctx context.Context, last int, event func(client.Event)) {
	seen := uint64(0)
	f.again(ctx, func(error) {}, func() error {
		o := client.EventOptions{Follow: true, Since: seen}
		if seen == 0 {
			o.Last = last
		}
		err := f.client.Events(ctx, o, func(e client.Event) error {
			seen = max(seen, e.Seq)
			event(e)
			return nil
		})
		if errors.Is(err, client.ErrBadRequest) {
			seen = 0 // another hinit runs, which counts from 1
		}
		return err
	})
}

// again calls ask until ctx ends. It calls ask again when hinit was gone, or has become another image of itself.
func (f *Feed) again(ctx context.Context, lost func(error), ask func() error) {
	for ctx.Err() == nil {
		err := ask()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			lost(reason(err))
		}
		pause.For(ctx, retry)
	}
}

// reason returns an error without the name of the request.
func reason(err error) error {
	if said := (*client.Error)(nil); errors.As(err, &said) {
		return errors.New(said.Message)
	}
	return err
}

// Do carries out an order. It returns when the order has its effect or has failed.
func (f *Feed) Do(ctx context.Context, verb client.Verb, name string) error {
	_, err := f.client.Order(ctx, verb, name, client.Wait{Wait: true})
	return err
}

// Signal sends a signal. word is the signal's name or number.
func (f *Feed) Signal(ctx context.Context, name, word string) error {
	number, known := formats.ParseSignal(word)
	if !known {
		return fmt.Errorf("%q is no signal; write a name such as HUP or a number from 1 to 64", word)
	}
	_, err := f.client.Signal(ctx, name, syscall.Signal(number))
	return err
}

// Save writes a text to a new file. It does not change an existing file or follow a link.
func Save(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}
