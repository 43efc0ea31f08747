package applet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/s6/formats"
)

const usageSvc = "[ -wu | -wU | -wd | -wD | -wr | -wR ] [ -T timeout ] [ -s signal | -abqhkti12pcyrlPCK ] [ -oduDUxOQ ] servicedir..."

// svc sends commands to services. PID 1 has taken them in when it returns; -w also waits for their effect.
func svc(c *Call) int {
	words, ok := formats.ParseSvc(c.Args)
	if !ok {
		return c.usage(usageSvc)
	}
	ctx := context.Background() // a signal ends the tool as it ends any program
	until := byte(0)
	before := make(map[string]uint64)
	if words.Wait != 0 {
		until = c.waitable(words)
		if until != 'u' && until != 'U' { // the run of now doesn't count, and its end does, however soon the next one begins
			for _, dir := range words.Dirs {
				if s, err := c.slot(ctx, dir); err == nil && (s.Up || until == 'r' || until == 'R') {
					before[dir] = s.Run
				}
			}
		}
	}
	code := exitDone
	for _, dir := range words.Dirs {
		if err := c.send(ctx, dir, words.Letters); err != nil {
			c.warn("unable to control " + dir + ": " + strerror(err))
			if code == exitDone {
				code = exitSystem
				if errors.Is(err, errNotListening) {
					code = exitNotAlive
				}
			}
		}
	}
	if code != exitDone || until == 0 {
		return code
	}
	c.Name = "s6-svlisten"
	if words.Letters == "" {
		c.Name = "s6-svwait"
	}
	return c.waitFor(ctx, words.Dirs, until, words.Timeout, true, before)
}

// waitable returns the state to wait for: readiness only for services that announce it.
func (c *Call) waitable(words formats.Svc) byte {
	if words.Wait != 'U' && words.Wait != 'R' {
		return words.Wait
	}
	for _, dir := range words.Dirs {
		if _, err := os.Stat(filepath.Join(dir, "notification-fd")); errors.Is(err, os.ErrNotExist) {
			c.warn(dir + "/notification-fd not present - ignoring request for readiness notification")
			return words.Wait + 'a' - 'A'
		}
	}
	return words.Wait
}

func (c *Call) send(ctx context.Context, dir, letters string) error {
	init, path, err := c.reach(dir)
	if err != nil {
		return err
	}
	if letters == "" { // only ask whether it is there
		_, err := init.Slot(ctx, path)
		return missing(dir, err)
	}
	return missing(dir, init.SlotControl(ctx, path, letters))
}

// svscanctl sends commands to the scanner. A scan is complete when it returns.
func svscanctl(c *Call) int {
	var letters strings.Builder
	o := formats.Options{Words: c.Args, Plain: "zabhitqnN"}
	for letter := range o.All() {
		letters.WriteByte(letter)
	}
	if o.Wrong || len(o.Words) == 0 {
		return c.usage("[ -zabhitqnN ] svscandir")
	}
	dir := o.Words[0]
	ctx := context.Background() // a signal ends the tool as it ends any program
	if err := c.scan(ctx, dir, letters.String()); err != nil {
		code := exitSystem
		if errors.Is(err, errNotListening) {
			code = exitUsage
		}
		return c.fatal(code, "unable to control "+dir+": "+strerror(err))
	}
	return exitDone
}

func (c *Call) scan(ctx context.Context, dir, letters string) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, ".s6-svscan")); err != nil {
		return errNotListening // a directory that nobody scans
	}
	init, err := c.Dial()
	if err != nil {
		return missing(dir, err)
	}
	if letters == "" {
		return nil
	}
	return missing(dir, init.SlotScan(ctx, letters))
}
