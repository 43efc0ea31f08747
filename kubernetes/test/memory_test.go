package test

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	hinit "hinit/client"
)

// symbols builds hinit with its symbols. It ends the test if the running program has other
// addresses.
func (b *testBed) symbols(pid int) *elf.File {
	b.Helper()
	path := filepath.Join(b.TempDir(), "hinit")
	words := []string{"build", "-trimpath", "-o", path}
	if runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64" {
		words = append(words, "-ldflags=-E hinit_entry") // Use the same flags as the Makefile.
	}
	cmd := exec.Command("go", append(words, "./cmd/hinit")...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	var files [2]*elf.File
	for i, name := range []string{path, fmt.Sprintf("/proc/%d/exe", pid)} {
		f, err := elf.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = f.Close() })
		files[i] = f
	}
	for _, section := range []string{".text", ".noptrdata", ".noptrbss"} {
		built, runs := files[0].Section(section), files[1].Section(section)
		if built.Addr != runs.Addr || built.Size != runs.Size {
			b.Fatalf("the pod runs another hinit than this repository's; make build")
		}
	}
	return files[0]
}

// runtimeOf reads the processor count and the memory limit of the Go runtime in a running hinit.
func (b *testBed) runtimeOf(pid int) (processors int32, memory int64) {
	b.Helper()
	f := b.symbols(pid)
	debug, err := f.DWARF()
	if err != nil {
		b.Fatal(err)
	}
	offset := int64(-1)
	for r := debug.Reader(); offset < 0; {
		entry, err := r.Next()
		if err != nil || entry == nil {
			b.Fatal("no type of the garbage collector's settings", err)
		}
		if entry.Tag != dwarf.TagStructType || entry.Val(dwarf.AttrName) != "runtime.gcControllerState" {
			continue
		}
		typ, err := debug.Type(entry.Offset)
		if err != nil {
			b.Fatal(err)
		}
		for _, field := range typ.(*dwarf.StructType).Field {
			if field.Name == "memoryLimit" {
				offset = field.ByteOffset
			}
		}
	}
	all, err := f.Symbols()
	if err != nil {
		b.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		b.Fatal(err)
	}
	defer mem.Close()
	read := func(name string, offset int64, into any) {
		for _, s := range all {
			if s.Name != name {
				continue
			}
			text := make([]byte, binary.Size(into))
			if _, err := mem.ReadAt(text, int64(s.Value)+offset); err != nil { //nolint:gosec // an address of a program
				b.Fatal(err)
			}
			if err := binary.Read(bytes.NewReader(text), binary.NativeEndian, into); err != nil {
				b.Fatal(err)
			}
			return
		}
		b.Fatal("no variable " + name)
	}
	read("runtime.gomaxprocs", 0, &processors)
	read("runtime.gcController", offset, &memory)
	return processors, memory
}

func (b *testBed) exitOf(pod, profile string) *hinit.Exit {
	b.Helper()
	r := b.execInPod(pod, "hinit", "status", "--json")
	var status hinit.Status
	if err := json.Unmarshal([]byte(r.output), &status); err != nil {
		b.Log(err, r)
		return nil
	}
	if s := status.Find("gateway-" + profile); s != nil {
		return s.LastExit
	}
	return nil
}

// awaitRestart waits until the kubelet has restarted a pod's container once and it is Ready. It
// returns how the first container ended.
func (b *testBed) awaitRestart(pod string) *corev1.ContainerStateTerminated {
	b.Helper()
	b.eventually(pod+" is restarted and Ready", func() string {
		if p := b.pod(pod); restarts(p) != 1 || !isPodReady(p) || lastTermination(p) == nil {
			return p.Status.String()
		}
		return ""
	})
	return lastTermination(b.pod(pod))
}

// TestAPodWithLimits checks pods with limits of memory and processors. hinit must report a gateway
// that was killed for memory, and the kubelet must restart a container whose PID 1 is killed or
// stopped.
func TestAPodWithLimits(t *testing.T) {
	b := withNode(t, "limits")
	b.volumes(2, corev1.ReadWriteOnce)
	for _, name := range []string{"one", "stopped"} {
		b.createPodWithValues(map[string]any{"memory.limit": "256Mi", "cpu.limit": "1", "drainSeconds": 0, "stopSeconds": 5}, name, func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
			s.Containers[0].LivenessProbe.FailureThreshold = 2
			if name == "one" { // In the class Guaranteed, the kernel spares PID 1.
				s.Containers[0].Resources.Requests = s.Containers[0].Resources.Limits
			}
		})
	}
	b.awaitReady("stopped")
	began := time.Now()
	if err := syscall.Kill(b.initOf("stopped"), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.awaitReady("one")
	processors, memory := b.runtimeOf(b.initOf("one"))
	t.Logf("GOMAXPROCS %d, GOMEMLIMIT %d MiB", processors, memory>>20)
	if want := int32(min(2, runtime.NumCPU())); processors != want || memory != 256<<20/8 { //nolint:gosec // Go takes no limit below 2
		t.Errorf("GOMAXPROCS is %d, GOMEMLIMIT %d: a pod of 1 processor and 256 MiB has %d, and an eighth", processors, memory, want)
	}
	b.gatewayIsKilledForMemory("one")

	if err := syscall.Kill(b.initOf("one"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	end := b.awaitRestart("one")
	t.Logf("killed: %s, code %d, %s", end.Reason, end.ExitCode, end.Message)
	described := b.mustRun("describe", "pod", "one")
	for _, want := range []string{"killed from outside (out of memory, or", "gateway-eater: ", "oom"} {
		if !strings.Contains(end.Message, want) || !strings.Contains(described, want) {
			t.Errorf("no %q in the last words: %s\n%s", want, end.Message, described)
		}
	}
	end = b.awaitRestart("stopped")
	t.Logf("stopped: restarted after %s at most, code %d, %s", time.Since(began), end.ExitCode, b.failedProbes("stopped"))
	if output := b.failedProbes("stopped"); !strings.Contains(output, "Liveness probe failed: ") || !strings.HasPrefix(end.Message, "killed from outside") {
		t.Errorf("the kubelet says of the init that is stopped: %s, and its last words are %s", output, end.Message)
	}
	if b.gatewayIn("stopped", "default") == 0 {
		t.Error("it is Ready, and its gateway does not run")
	}
}

// gatewayIsKilledForMemory lets a gateway exceed the pod's memory. The pod must survive, and hinit
// must report the cause and restart each gateway that the kernel killed.
func (b *testBed) gatewayIsKilledForMemory(pod string) {
	b.Helper()
	if r := b.execInPod(pod, "sh", "-c", "hermes profile create eater && echo oom=400 > /opt/data/profiles/eater/agent.conf"); r.exitCode != 0 {
		b.Fatal(r)
	}
	first := b.gatewayIn(pod, "default")
	b.execInPod(pod, "hinit", "start", "--no-wait", "eater")
	b.eventually("status tells the cause", func() string {
		if exit := b.exitOf(pod, "eater"); exit == nil || exit.Cause != "oom" {
			return fmt.Sprintf("%+v", exit)
		}
		return ""
	})
	b.eventually("hinit stops the gateway", func() string { // Ignore an error, because the kernel may kill the command too.
		if r := b.execInPod(pod, "hinit", "stop", "eater"); r.exitCode != 0 {
			return r.String()
		}
		return ""
	})
	var other int
	b.eventually("the other gateway runs", func() string {
		if other = b.gatewayIn(pod, "default"); other == 0 {
			return "it does not"
		}
		return ""
	})
	if other != first {
		if exit := b.exitOf(pod, "default"); exit == nil || exit.Cause != "oom" {
			b.Errorf("the other gateway was process %d and is %d, and its last exit is %+v", first, other, exit)
		}
	}
	b.consistently(3*time.Second, func() string {
		if p, now := b.pod(pod), b.gatewayIn(pod, "default"); !isPodReady(p) || restarts(p) != 0 || now != other {
			return fmt.Sprintf("one gateway was killed for memory: Ready %v, %d restarts, the other gateway was process %d and is %d", isPodReady(p), restarts(p), other, now)
		}
		return ""
	})
	b.eventually("the last words tell it too", func() string {
		if output := b.execInPod(pod, "cat", "/dev/termination-log").output; !strings.Contains(output, "oom") {
			return output
		}
		return ""
	})
}
