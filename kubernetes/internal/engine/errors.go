package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"hinit/sandbox"
)

// apiError returns an error for a failed request to the API server. The text what describes the request. The error wraps the error of
// package sandbox that corresponds to the server's answer.
func apiError(what string, err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []error{sandbox.ErrGone, sandbox.ErrNoEngine, sandbox.ErrNoImage, sandbox.ErrRefused} {
		if errors.Is(err, known) {
			return fmt.Errorf("cannot %s: %w", what, err)
		}
	}
	var kind error
	network, asked := net.Error(nil), (*url.Error)(nil)
	switch {
	case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "namespaces"):
		kind = sandbox.ErrRefused
	case apierrors.IsNotFound(err):
		kind = sandbox.ErrGone
	case apierrors.IsAlreadyExists(err):
		kind = sandbox.ErrNameTaken
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		kind = sandbox.ErrRefused
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err), apierrors.IsUnexpectedServerError(err), apierrors.IsUnauthorized(err),
		errors.As(err, &network), errors.As(err, &asked):
		return fmt.Errorf("cannot %s: %w: the API server of the cluster: %w", what, sandbox.ErrNoEngine, err)
	default:
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	return fmt.Errorf("cannot %s: %w: %w", what, kind, err)
}

// unsupported returns an error for a setting that a pod can't have.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{sandbox.ErrRefused}, args...)...)
}
