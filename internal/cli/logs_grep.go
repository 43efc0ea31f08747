package cli

import (
	"bytes"
	"context"

	"hinit/internal/fsutil"
	"hinit/logrotate"
)

// readMatching is [logrotate.Read] for the lines whose text matches: the last ones of the history, -1 for all, and then, where
// opt follows, those that come.
func readMatching(ctx context.Context, as *fsutil.Actor, opt logrotate.ReadOptions, match func(text []byte) bool, last int,
	emit func([]byte) error,
) error {
	var kept [][]byte
	collecting := last >= 0
	show := func() error {
		collecting = false
		for _, line := range kept {
			if err := emit(line); err != nil {
				return err
			}
		}
		kept = nil
		return nil
	}
	opt.Caught = show
	err := logrotate.Read(ctx, as, opt, func(line []byte) error {
		_, text, _ := logrotate.Split(line)
		switch {
		case !match(text):
			return nil
		case !collecting:
			return emit(line)
		case last > 0:
			kept = append(kept[max(0, len(kept)+1-last):], bytes.Clone(line))
		}
		return nil
	})
	if collecting { // without following, the end is the end of the history
		if shown := show(); err == nil {
			err = shown
		}
	}
	return err
}
