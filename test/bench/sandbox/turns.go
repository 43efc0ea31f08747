package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// floorSource is a program that only makes one round trip over a socket. No client of a service can
// be faster.
const floorSource = `package main

import (
	"net"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		return
	}
	c, err := net.Dial("unix", os.Args[1])
	if err == nil {
		_, err = c.Write([]byte{1})
	}
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err != nil {
		panic(err)
	}
}
`

// Rows of [bench.measureDockerCommand].
const (
	floorRow       = "true in turns: an empty Go program"
	tripRow        = "true in turns: the same, with one round trip over a socket"
	personalityRow = "true in turns: the docker personality without the service"
	dockerRow      = "true in turns: the docker command"
)

// measureDockerCommand measures `docker exec … true` with hinit's docker emulation and with its
// competitors, alternately.
func (b *bench) measureDockerCommand(ctx context.Context, id string) error {
	floor, ours := filepath.Join(b.dir, "floor"), filepath.Join(b.dir, "bin", "docker")
	if err := os.WriteFile(floor+".go", []byte(floorSource), 0o600); err != nil {
		return err
	}
	for target, source := range map[string]string{floor: floor + ".go", ours: "hinit/cmd/hinit-sandbox"} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", target, source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot build %s: %w: %s", target, err, out)
		}
	}
	socket := filepath.Join(b.dir, "echo.sock")
	echo, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(c, c, 1)
			c.Close()
		}
	}()
	return b.timeInTurns(3*b.runs, []variant{
		{floorRow, b.runnerOf(floor)},
		{tripRow, b.runnerOf(floor, socket)},
		{personalityRow, b.runnerOf(ours, "exec", id, "true")},
		{dockerRow, b.runnerOf("docker", "exec", id, "true")},
	})
}

func (b *bench) runnerOf(program string, args ...string) func() error {
	return func() error {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "TERMINAL_SANDBOX_DIR="+b.dir, "HERMES_HOME="+b.dir, "HINIT_SANDBOX_SOCKET="+filepath.Join(b.dir, "none"), "TMPDIR="+b.dir,
			"HINIT_SANDBOX_HELPER="+filepath.Join(b.dir, "hinit-sandbox-helper"))
		return cmd.Run()
	}
}
