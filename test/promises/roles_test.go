package promises_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// roleVar makes this test binary one of the programs that attack an init.
const roleVar = "HINIT_PROMISES_ROLE"

func runRole(role string) int {
	if role != "hog" {
		fmt.Fprintf(os.Stderr, "there is no role %q\n", role)
		return 2
	}
	// A hog holds connections open until it is killed.
	var held []net.Conn
	for {
		c, err := net.Dial("unix", os.Getenv("SOCKET"))
		if errors.Is(err, syscall.EAGAIN) { // hinit could not accept so many connections yet.
			<-time.After(10 * time.Millisecond)
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if held = append(held, c); len(held) == 300 {
			fmt.Println("full") // The test waits for this line.
			select {}
		}
	}
}
