package proc_test

import (
	"hinit/internal/proc"
	"hinit/internal/reexec"
)

func init() {
	proc.EncodeAndDecode = func(was, is *proc.Handover) error {
		data, err := reexec.NewCodec().Encode(was)
		if err != nil {
			return err
		}
		return reexec.NewCodec().Decode(data, is)
	}
}
