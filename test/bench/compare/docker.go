package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// withoutInit is the table row of a container that runs the program without an init.
const withoutInit = "no init"

// Exit codes of docker run under timeout(1) that are not from the container.
const (
	engineFailed = 125
	engineHangs  = 124
)

const dockerTime = "60"

// docker returns a docker command with a time limit.
func docker(args ...string) *exec.Cmd {
	return exec.Command("timeout", append([]string{dockerTime, "docker"}, args...)...)
}

// measureContainers measures M11: docker run of a program that does nothing, from an image that has only hinit and that program.
func (b *bench) measureContainers() error {
	if err := docker("version").Run(); err != nil {
		b.addRemark("M11 is left out: there is no Docker engine here")
		return nil
	}
	image, err := b.image()
	if err != nil {
		return err
	}
	defer func() { _ = docker("rmi", "-f", image).Run() }() // Ignore the error: no later step uses the image.
	ways := []struct {
		name string
		args []string
	}{
		{withoutInit, []string{"--entrypoint", "/true", image}},
		{"docker --init", []string{"--init", "--entrypoint", "/true", image}},
		{hinitName, []string{"--entrypoint", "/init", image, "/true"}},
	}
	for range b.runs {
		took := map[string]float64{}
		for _, way := range shuffled(ways) {
			argv := docker(append([]string{"run", "--rm", "--network", "none"}, way.args...)...).Args
			d, err := timeCommands([]string{"HOME=" + os.Getenv("HOME")}, "", [][]string{argv})
			if code := (exitError{}); errors.As(err, &code) && (code.code == engineFailed || code.code == engineHangs) {
				b.addRemark("M11 is not complete: the Docker engine has failed")
				return nil
			}
			if err != nil {
				return err
			}
			took[way.name] = ms(d)
		}
		for name, whole := range took {
			b.figures.add("M11", "whole", name, whole)
			if name != withoutInit {
				b.figures.add("M11", "added", name, whole-took[withoutInit])
			}
		}
	}
	return nil
}

func (b *bench) image() (string, error) {
	var root bytes.Buffer
	t := tar.NewWriter(&root)
	for _, dir := range []string{"etc/", "etc/hinit/", "opt/", "opt/data/", "run/", "tmp/"} {
		if err := t.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Now()}); err != nil {
			return "", err
		}
	}
	files := map[string]string{
		"etc/passwd": fmt.Sprintf("root:x:0:0:root:/:/true\n%[1]s:x:%[2]d:%[2]d:%[1]s:/opt/data:/true\n", shimUser, agentID),
		"etc/group":  fmt.Sprintf("root:x:0:\n%s:x:%d:\n", shimUser, agentID),
	}
	for name, path := range map[string]string{"init": b.hinit, "true": b.empty} {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		files[name] = string(text)
	}
	for name, text := range files {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), ModTime: time.Now()}); err != nil {
			return "", err
		}
		if _, err := t.Write([]byte(text)); err != nil {
			return "", err
		}
	}
	if err := t.Close(); err != nil {
		return "", err
	}
	image := "hinit-bench:" + strconv.Itoa(os.Getpid())
	cmd := docker("import", "-", image)
	cmd.Stdin = &root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("docker import: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return image, nil
}
