package main

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes the machine on which the figures were measured.
type machine struct {
	Processor  string `json:"processor"`
	Processors int    `json:"processors"`
	MemoryMB   int64  `json:"memory_mb"`
	Kernel     string `json:"kernel"`
	System     string `json:"system"`
	Go         string `json:"go"`
	Arch       string `json:"arch"`
	Commit     string `json:"commit"` // Commit of the measured sources, with the suffix "modified" for local changes.
}

func thisMachine() machine {
	m := machine{
		Processor: valueOf("/proc/cpuinfo", "model name", ":"), Processors: runtime.NumCPU(),
		MemoryMB: sumFields("/proc/meminfo", "MemTotal") >> 10,
		System:   strings.Trim(valueOf("/etc/os-release", "PRETTY_NAME", "="), `"`),
		Go:       runtime.Version(), Arch: runtime.GOARCH,
	}
	m.Commit = firstLine("git", "rev-parse", "--short=12", "HEAD")
	if m.Commit != "" && firstLine("git", "status", "--porcelain", "--untracked-files=no") != "" {
		m.Commit += ", modified"
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	return m
}

// loadAverage returns the load average of the last minute (proc_loadavg(5)), which measuring itself raises.
func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	return asNumber(first)
}

// valueOf returns the value from the first line "name separator value" of a file.
func valueOf(path, name, separator string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if k, v, ok := strings.Cut(lines.Text(), separator); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
