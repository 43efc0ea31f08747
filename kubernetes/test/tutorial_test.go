package test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/internal/cluster"
)

var updatePages = flag.Bool("write", false, "write the output of the commands into the tutorial")

const tutorial = "../../docs/tutorial/agents-on-a-cluster.md"

// consoleBlock matches a block of commands and their output.
var consoleBlock = regexp.MustCompile("(?s)```console\n(.*?)```")

// moveCommand matches commands that move the pod. The next "rollout status" waits for the end of the
// move.
var moveCommand = regexp.MustCompile(`^kubectl (apply -k \. \||drain )`)

// TestTheTutorial runs the commands of the page: each must succeed and print the lines below it, except for numbers.
func TestTheTutorial(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, manifestNamespace)
	// Delete the namespace, because the page's commands create it.
	b.mustRun("delete", "namespace", manifestNamespace, "--ignore-not-found", "--timeout=3m")
	b.startSecondNode()
	b.volumes(1, corev1.ReadWriteOnce)
	text, err := os.ReadFile(tutorial)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS("../deploy")); err != nil {
		t.Fatal(err)
	}
	_, kustomization, _ := strings.Cut(page, "```yaml\n")
	kustomization, _, found := strings.Cut(kustomization, "```")
	if !found {
		t.Fatal("the page has no kustomization")
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		t.Fatal(err)
	}
	typed, began, two := 0, time.Now(), 0
	var w *gatewayWatch
	var c *commandLoop
	what := ""
	page = consoleBlock.ReplaceAllStringFunc(page, func(block string) string {
		var out strings.Builder
		out.WriteString("```console\n")
		for _, step := range strings.Split("\n"+consoleBlock.FindStringSubmatch(block)[1], "\n$ ")[1:] {
			command, want, _ := strings.Cut(step, "\n")
			if w == nil && moveCommand.MatchString(command) {
				w, what = watchGateways("default", "coder", "writer"), command
			}
			got := b.shell(dir, command)
			typed++
			if c == nil && strings.Contains(command, "hinit sandbox exec") {
				c = b.sendCommands()
			}
			if w != nil && strings.Contains(command, "rollout status") {
				b.eventually("all gateways run", func() string {
					for _, profile := range []string{"default", "coder", "writer"} {
						if len(gatewayPIDs()[profile]) != 1 {
							return profile
						}
					}
					return ""
				})
				gap, many := w.end()
				two += w.duplicates
				t.Logf("%s: %v without a gateway (%v), %d of a profile at once", what, gap, w, many)
				if many > 1 || gap > maxGap {
					t.Error("that is too many, or too long")
				}
				w = nil
			}
			fmt.Fprintf(&out, "$ %s\n%s", command, got)
			for line := range strings.SplitSeq(strings.TrimSpace(want), "\n") {
				if !*updatePages && !strings.Contains(maskVariable(got), maskVariable(line)) {
					t.Errorf("%s prints\n%sand not %q", command, got, line)
				}
			}
		}
		return out.String() + "```"
	})
	took := time.Since(began).Round(time.Second)
	if c == nil {
		t.Fatal("the page has no command in a sandbox")
	}
	t.Logf("%d commands in %v; moments with two gateways of a profile: %d; commands in the sandbox: %v", typed, took, two, c.end(b))
	if typed < 10 || took > 10*time.Minute || two > 0 {
		t.Error("that is too few commands, too long, or two at once")
	}
	if *updatePages && !t.Failed() {
		if err := os.WriteFile(tutorial, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// commandLoop runs commands in the agents' sandbox while their pod moves.
type commandLoop struct {
	stop, stopped chan struct{}
	answers       map[int]string // Answers to the commands, by number.
}

// sendCommands starts a loop of commands. Each command records its run on the volume.
func (b *testBed) sendCommands() *commandLoop {
	c := &commandLoop{stop: make(chan struct{}), stopped: make(chan struct{}), answers: map[int]string{}}
	go func() {
		defer close(c.stopped)
		for n := 1; ; n++ {
			r := b.run("exec", "agents-0", "-c", "agents", "--", "hinit", "sandbox", "exec", fmt.Sprintf("echo %d >> /workspace/ran; echo ok %d", n, n))
			c.answers[n] = r.output
			select {
			case <-c.stop:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	}()
	return c
}

// end stops the loop, and compares the answers with the recorded runs. A command without an answer
// was cut off by the move.
func (c *commandLoop) end(b *testBed) string {
	b.Helper()
	close(c.stop)
	<-c.stopped
	var r result
	b.eventually("the sandbox answers", func() string {
		r = b.run("exec", "agents-0", "-c", "agents", "--", "hinit", "sandbox", "exec", "cat /workspace/ran")
		return map[bool]string{false: r.String()}[r.exitCode == 0]
	})
	ran := map[string]int{}
	for n := range strings.FieldsSeq(r.output) {
		ran[n]++
	}
	done, lost, unanswered := 0, 0, 0
	for n, output := range c.answers {
		times := ran[strconv.Itoa(n)]
		switch {
		case output == fmt.Sprintf("ok %d\n", n):
			done++
			if times != 1 {
				b.Errorf("command %d was answered, and ran %d times", n, times)
			}
		case strings.Contains(output, "had begun"), strings.Contains(output, "may have begun"):
			lost++
			b.Errorf("command %d is lost: %s", n, output)
		default:
			unanswered++
			if times > 1 {
				b.Errorf("command %d ran %d times: %s", n, times, output)
			}
		}
	}
	if done == 0 {
		b.Error("no command was answered")
	}
	return fmt.Sprintf("%d answered, %d lost, %d without the pod of their caller", done, lost, unanswered)
}

// shell runs a shell command as the cluster administrator.
func (b *testBed) shell(dir, command string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	kubectl := b.Kubectl(ctx)
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Env = dir, kubectl.Env
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

var (
	digits = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	victim = regexp.MustCompile(`takes first: \S+`)
	spaces = regexp.MustCompile(`[ \t]+`)
)

// maskVariable replaces text that differs between runs: numbers and column widths.
func maskVariable(text string) string {
	return spaces.ReplaceAllString(digits.ReplaceAllString(victim.ReplaceAllString(text, ""), "0"), " ")
}
