package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Kinds of writers.
const (
	blocks          = "64 KiB a write"
	oneLinePerWrite = "a line a write"
)

const lineSize = 100

// endMark marks the last line of a writer.
const endMark = "this was the last line"

// runRole runs one of the other programs in this binary, which name selects, see [roleVar].
func runRole(name string, args []string) error {
	switch name {
	case "write":
		return writeLines(args[0], args[1], args[2])
	case "drain":
		return readConsole(args[0])
	case "copy":
		return copyLoop(args[0])
	case "splice":
		return spliceLoop(args[0])
	case "discard":
		return discardLoop(args[0])
	case "idle":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		<-stop
		return nil
	case "contain":
		return becomeContainer(args)
	case "probe":
		return probe(args[0])
	}
	return fmt.Errorf("no such verb")
}

// writeLines waits for a reader of the FIFO, and then writes count lines.
func writeLines(fifo, count, kind string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	start, err := os.Open(fifo)
	if err != nil {
		return err
	}
	defer start.Close()
	line := append(bytes.Repeat([]byte{'x'}, lineSize-1), '\n')
	last := fmt.Appendf(nil, "%*s\n", lineSize-1, endMark)
	per := 1
	if kind == blocks {
		per = 64 << 10 / lineSize
	}
	block := bytes.Repeat(line, per)
	for n--; n > 0; {
		chunk := block[:min(n, per)*lineSize]
		if err := writeAll(1, chunk); err != nil {
			return err
		}
		n -= len(chunk) / lineSize
	}
	return writeAll(1, last)
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		p = p[max(n, 0):]
	}
	return nil
}

// readConsole imitates a container runtime that reads the console. At the end, it writes the number
// of lines to the file result.
func readConsole(result string) error {
	buf := make([]byte, 64<<10)
	lines := 0
	for {
		n, err := unix.Read(0, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return os.WriteFile(result, []byte(strconv.Itoa(lines)), 0o644)
		}
		// Count only the writer's lines.
		lines += bytes.Count(buf[:n], []byte("x\n")) + bytes.Count(buf[:n], []byte(endMark))
	}
}

// copyLoop is the upper bound for a logger that looks at each byte: it only reads and writes.
func copyLoop(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(0, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		if err := writeAll(int(f.Fd()), buf[:n]); err != nil {
			return err
		}
	}
}

// spliceLoop is the upper bound for any logger: the kernel moves the bytes.
func spliceLoop(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	for {
		n, err := unix.Splice(0, nil, fd, nil, 1<<20, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
	}
}

// writerAlone is the row of the writer without a logger. Its output is discarded.
const writerAlone = "ceiling: the writer alone"

func discardLoop(file string) error {
	const most = 1 << 20 // Largest size of a pipe (fs.pipe-max-size).
	_, _ = unix.FcntlInt(0, unix.F_SETPIPE_SZ, most)
	buf := make([]byte, most)
	for {
		n, err := unix.Read(0, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		if bytes.HasSuffix(buf[:n], []byte(endMark+"\n")) {
			if err := os.WriteFile(file, buf[max(n-lineSize, 0):n], 0o644); err != nil {
				return err
			}
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 1_000_000}, nil)
	}
}

// becomeContainer mounts /proc in a new PID namespace, and executes the init.
func becomeContainer(argv []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := os.Unsetenv(roleVar); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}
