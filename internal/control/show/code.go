package show

import (
	"errors"

	"hinit/client"
)

// Code returns the exit code for an error of a client. It is the same in all of hinit's programs (docs/reference/exit-codes.md).
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
