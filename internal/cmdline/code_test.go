package cmdline_test

import (
	"errors"
	"fmt"
	"testing"

	"hinit/client"
	"hinit/internal/cmdline"
)

func TestTheCodeOfAnError(t *testing.T) {
	for err, want := range map[error]int{
		nil: 0, errors.New("other"): 1, client.ErrUnreachable: 4, client.ErrNotAllowed: 5, fmt.Errorf("cannot start it: %w", client.ErrUnknown): 6,
		&client.Error{Kind: client.KindBusy}: 4, &client.Error{Kind: client.KindTimeout}: 1,
	} {
		if got := cmdline.ExitCode(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}
