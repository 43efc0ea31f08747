package actions

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/version"
	"hinit/internal/wholefile"
)

// SignatureHeader is the HTTP header with the signature of a request. Its value is the HMAC-SHA256 of the request's body, as
// "sha256=" and hex digits.
const SignatureHeader = "X-Hinit-Signature"

func (r *Runner) execute(ctx context.Context, j *Job) error {
	if j.Action.Webhook == "" {
		return run(ctx, j)
	}
	for try := 1; ; try++ {
		again, err := send(ctx, j)
		switch {
		case err == nil || !again:
			return err
		case try == maxAttempts:
			return fmt.Errorf("given up after %d tries: %w", try, err)
		case try == 1:
			r.Log.Info("trying again", "event", j.Event, "service", j.Service, "target", j.shown(), "err", err)
		}
		if !pause.For(ctx, r.Retry.Delay(try, rand.Float64())) {
			return ctx.Err()
		}
	}
}

// webhookClient is the HTTP client for webhooks. It doesn't follow redirects, because a request that is signed for one server
// must not go to another.
var webhookClient = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// send makes one attempt to send the request for a webhook. again reports whether another attempt may succeed.
func send(ctx context.Context, j *Job) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.Action.Timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, j.Action.Webhook, bytes.NewReader(j.Body))
	if err != nil {
		return false, errors.New("its address is none")
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("User-Agent", "hinit-actions/"+version.Get().Version)
	if file := j.Action.SecretFile; file != "" {
		key, err := wholefile.Read(file, 64<<10)
		if err != nil {
			return true, fmt.Errorf("cannot read the secret: %w", err)
		}
		q.Header.Set(SignatureHeader, signature(bytes.TrimSpace(key), j.Body))
	}
	a, err := webhookClient.Do(q)
	if err != nil {
		if u, is := errors.AsType[*url.Error](err); is {
			err = u.Err // leave out the address, which may be secret
		}
		return true, err
	}
	defer a.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(a.Body, 64<<10)) // read the rest, so that the connection can be reused
	switch {
	case a.StatusCode/100 == 2:
		return false, nil
	case a.StatusCode/100 == 5, a.StatusCode == http.StatusTooManyRequests:
		return true, errors.New("the answer is " + a.Status)
	}
	return false, errors.New("it is refused: the answer is " + a.Status)
}

func signature(key, body []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// run runs the command of j's action in a new session, and passes j.Body to the command on standard input. When the action's time
// limit passes, run kills the process group.
func run(ctx context.Context, j *Job) error {
	fd, err := unix.MemfdCreate("event", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	input := os.NewFile(uintptr(fd), "event")
	defer input.Close()
	if _, err := input.WriteAt(append(bytes.Clone(j.Body), '\n'), 0); err != nil { // WriteAt leaves the offset at the beginning
		return err
	}
	timed, cancel := context.WithTimeout(ctx, j.Action.Timeout)
	defer cancel()
	x, err := proc.Run(timed, proc.Spec{
		Name: "action", Argv: j.Action.Exec, Files: []*os.File{input, os.Stdout, os.Stderr},
		Env: proc.SetEnv(os.Environ(), map[string]string{"HINIT_EVENT": j.Event, "HINIT_SERVICE": j.Service, "HINIT_PROFILE": j.Profile}),
	})
	switch {
	case timed.Err() != nil && x.Signal == int(unix.SIGKILL):
		return fmt.Errorf("it was killed after %s", j.Action.Timeout)
	case err != nil:
		return err
	case x.Signal != 0:
		return fmt.Errorf("signal %d ended it", x.Signal)
	case x.Code != 0:
		return fmt.Errorf("exit code %d", x.Code)
	}
	return nil
}
