// Command image measures the boot of an image with hinit, against the engine alone. It also measures how long many gateways take
// to become ready, against one alone and all at once. It takes the figures in turns, so that load affects all of them alike.
//
//	make bench-image                                   # on a stand-in for the agent's image
//	go run ./test/bench/image -image IMAGE [-rounds 7] [-gateways 12]
//
// It needs an engine. It owns no goroutine.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	// Container name, and prefix of its volumes' names.
	name = "hinit-bench-image"
	// Time limit for the gateways to become ready.
	patience = 5 * time.Minute
	// Command of the container, which polls the status.
	statusLoop = `while hinit status --json; do sleep 0.2; done`
	// Interval between two status answers. Smaller differences are noise.
	answerInterval = 200 * time.Millisecond
)

var (
	image    = flag.String("image", "", "the image; its agent is the one of Hermes, or the example agent")
	rounds   = flag.Int("rounds", 7, "how often each figure is taken; the median counts")
	gateways = flag.Int("gateways", 12, "how many gateways start at once")
	cpu      = flag.Duration("start-cpu", 1100*time.Millisecond, "processor time that a start of the example agent takes")
)

func main() {
	flag.Parse()
	defer cleanUp()
	if err := measure(); err != nil {
		cleanUp()
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure() error {
	if *image == "" {
		return errors.New("cannot measure without -image; make bench-image has one")
	}
	cleanUp()
	before := loadAverage()
	if err := makeVolumes(); err != nil {
		return err
	}
	took := make(map[string][]time.Duration)
	one := func(what string, of func() (time.Duration, error)) error {
		d, err := of()
		took[what] = append(took[what], d)
		return err
	}
	for range *rounds {
		for _, volume := range []string{"used", "new"} {
			err := errors.Join(
				one("alone/"+volume, func() (time.Duration, error) { return timeRun(volume, []string{"--entrypoint", "/bin/true"}) }),
				one("true/"+volume, func() (time.Duration, error) { return timeRun(volume, nil, "true") }),
				one("cmd/"+volume, func() (time.Duration, error) { return timeToFirstOutput(volume) }),
			)
			if err != nil {
				return err
			}
		}
		for what, setting := range map[string]string{"one": "", "turns": "", "atonce": fmt.Sprint("start: {parallel: ", *gateways, "}")} {
			first, last, err := timeToReady(what, setting)
			if err != nil {
				return err
			}
			took["first/"+what], took["last/"+what] = append(took["first/"+what], first), append(took["last/"+what], last)
		}
	}
	at := func(what string) time.Duration {
		sorted := slices.Sorted(slices.Values(took[what]))
		return sorted[len(sorted)/2].Round(time.Millisecond)
	}
	line := func(label, what string, wanted time.Duration, why string) {
		verdict := "kept"
		if at(what) > wanted {
			verdict = "MISSED"
		}
		if wanted == 0 {
			verdict = ""
		}
		fmt.Printf("%-52s %8v  %-28s %s\n", label, at(what), why, verdict)
	}
	fmt.Printf("%s, medians of %d; load before %s, after %s\n", *image, *rounds, before, loadAverage())
	const beyondUsed, beyondNew, toCmd = 150 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond
	line("docker run --entrypoint /bin/true, used volume", "alone/used", 0, "")
	line("docker run IMAGE true, used volume", "true/used", at("alone/used")+beyondUsed, fmt.Sprint("≤ ", at("alone/used")+beyondUsed))
	line("docker run --entrypoint /bin/true, new volume", "alone/new", 0, "")
	line("docker run IMAGE true, new volume", "true/new", at("alone/new")+beyondNew, fmt.Sprint("≤ ", at("alone/new")+beyondNew))
	line("docker run to the CMD, used volume", "cmd/used", toCmd, fmt.Sprint("≤ ", toCmd))
	line("docker run to the CMD, new volume", "cmd/new", toCmd, fmt.Sprint("≤ ", toCmd))
	line("one gateway: ready", "first/one", 0, "")
	most := (at("first/one") * 13 / 10).Round(time.Millisecond)
	line(fmt.Sprintf("%d gateways: the first ready", *gateways), "first/turns", most, fmt.Sprint("≤ ", most))
	latest := at("last/atonce") + answerInterval
	line(fmt.Sprintf("%d gateways: the last ready", *gateways), "last/turns", latest, fmt.Sprint("≤ ", latest))
	line(fmt.Sprintf("%d gateways at once: the first ready", *gateways), "first/atonce", 0, "")
	line(fmt.Sprintf("%d gateways at once: the last ready", *gateways), "last/atonce", 0, "")
	return nil
}

// makeVolumes creates the reused volumes: one that was booted before, and two whose gateways ran.
func makeVolumes() error {
	const lay = `for p in "$0" "$@"; do mkdir -p $p; echo A profile. >$p/SOUL.md; echo '{"desired_state":"running"}' >$p/gateway_state.json; done`
	homes := []string{"/opt/data"}
	for i := range *gateways - 1 {
		homes = append(homes, fmt.Sprintf("/opt/data/profiles/p%02d", i+1))
	}
	_, err := timeRun("used", nil, "true")
	_, one := timeRun("one", nil, "sh", "-c", lay, homes[0])
	errs := []error{err, one}
	for _, volume := range []string{"turns", "atonce"} {
		_, err := timeRun(volume, nil, append([]string{"sh", "-c", lay}, homes...)...)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// dockerArgs returns docker's arguments for a container on a volume; "new" is an empty volume.
func dockerArgs(verb, volume string, options []string, cmd ...string) []string {
	args := append(append(strings.Fields(verb), "--name", name, "-e", "AGENT_START_CPU="+cpu.String()), options...)
	if volume != "new" {
		args = append(args, "-v", name+"-"+volume+":/opt/data")
	}
	return append(append(args, *image), cmd...)
}

// timeRun returns how long docker run takes.
func timeRun(volume string, options []string, cmd ...string) (time.Duration, error) {
	begin := time.Now()
	out, err := exec.Command("docker", dockerArgs("run --rm", volume, options, cmd...)...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("cannot run a container: %w: %s", err, out)
	}
	return time.Since(begin), nil
}

// timeToFirstOutput returns the time from docker run to the CMD's first output.
func timeToFirstOutput(volume string) (time.Duration, error) {
	cmd := exec.Command("docker", dockerArgs("run --rm", volume, nil, "echo", "the CMD")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(out, make([]byte, 1))
	took := time.Since(begin)
	_, _ = io.Copy(io.Discard, out)
	return took, errors.Join(err, cmd.Wait())
}

func timeToReady(volume, setting string) (first, last time.Duration, err error) {
	if out, err := exec.Command("docker", dockerArgs("create", volume, []string{"-e", "HINIT_LOG_CONSOLE=off"}, "sh", "-c", statusLoop)...).CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("cannot make a container: %w: %s", err, out)
	}
	defer func() { _ = exec.Command("docker", "rm", "-fv", name).Run() }()
	if setting != "" {
		if err := configure(setting); err != nil {
			return 0, 0, err
		}
	}
	cmd := exec.Command("docker", "start", "-a", name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for status := json.NewDecoder(out); time.Since(begin) < patience; {
		var now struct {
			Services []struct {
				Kind, Want string
				Ready      bool
			}
		}
		if err := status.Decode(&now); err != nil {
			return 0, 0, fmt.Errorf("cannot read the status: %w", err)
		}
		up, wanted := 0, 0
		for _, s := range now.Services {
			if s.Kind == "gateway" && s.Want == "up" {
				wanted++
				if s.Ready {
					up++
				}
			}
		}
		if up > 0 && first == 0 {
			first = time.Since(begin)
		}
		if wanted > 0 && up == wanted {
			last = time.Since(begin)
			_ = exec.Command("docker", "stop", name).Run() // docker stop leaves the volume as an ordinary stop does.
			return first, last, nil
		}
	}
	return 0, 0, fmt.Errorf("the gateways are not ready after %v", patience)
}

func configure(text string) error {
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Mkdir(dir+"/hinit", 0o755), os.WriteFile(dir+"/hinit/hinit.yaml", []byte(text+"\n"), 0o644)); err != nil {
		return err
	}
	if out, err := exec.Command("docker", "cp", dir+"/hinit", name+":/etc/").CombinedOutput(); err != nil {
		return fmt.Errorf("cannot configure a container: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	words := strings.Fields(string(text) + " ?")
	return words[0]
}

// cleanUp removes this program's containers and volumes.
func cleanUp() {
	_ = exec.Command("docker", "rm", "-fv", name).Run()
	for _, volume := range []string{"used", "one", "turns", "atonce"} {
		_ = exec.Command("docker", "volume", "rm", "-f", name+"-"+volume).Run()
	}
}
