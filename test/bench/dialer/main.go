// Command dialer checks TCP ports 500 times in 10 s in the simplest way in Go: with a goroutine and a ticker for each check.
// The benchmark compares hinit's checks with it. Its goroutines run until the process is killed.
package main

import (
	"context"
	"net"
	"os"
	"time"
)

const (
	checks = 500
	period = 10 * time.Second
)

func main() {
	for i := range checks {
		go func() {
			time.Sleep(time.Duration(i) * period / checks)
			ticker := time.NewTicker(period)
			for ; ; <-ticker.C {
				check(net.JoinHostPort("127.0.0.1", os.Args[1]))
			}
		}()
	}
	select {}
}

func check(address string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		os.Exit(1) // The benchmark fails after this exit.
	}
	_ = c.Close()
}
