package dial_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"hinit/client"
	"hinit/client/dial"
)

func Example() {
	c, err := dial.Dial([]string{"/run/hinit/control.sock"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	s, err := c.Restart(context.Background(), "coder", client.WaitOptions{Wait: true, Timeout: time.Minute})
	switch {
	case errors.Is(err, client.ErrUnknown):
		fmt.Println("there is no coder")
	case err != nil:
		fmt.Println(err) // cannot restart "coder": gateway-coder is parked: exited with code 78 (config); last lines: ...
	default:
		fmt.Printf("%s is %s as process %d\n", s.Name, s.State, s.PID)
	}
}
