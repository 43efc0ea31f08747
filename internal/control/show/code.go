package show

import (
	"errors"

	"hinit/client"
)

// Code is the exit code that an error of a client has, in every program of hinit (docs/reference/exit-codes.md).
func Code(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, client.ErrUnreachable):
		return 4
	case errors.Is(err, client.ErrNotAllowed):
		return 5
	case errors.Is(err, client.ErrUnknown):
		return 6
	}
	return 1
}
