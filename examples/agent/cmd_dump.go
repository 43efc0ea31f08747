package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// shaFile holds the revision from which the image was built. Some images lack the file.
const shaFile = "/opt/hermes/.hermes_build_sha"

func agentVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func cmdVersion(c *call) int {
	fmt.Fprintln(c.stdout, "example-agent", agentVersion())
	return exitOK
}

func cmdDump(c *call) int {
	fmt.Fprintf(c.stdout, "version:  %s\ngo:       %s %s/%s\nprofile:  %s\nhome:     %s\n",
		agentVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, c.home.Profile, c.home.Dir)
	if sha, err := os.ReadFile(shaFile); err == nil {
		fmt.Fprintf(c.stdout, "build:    %s\n", strings.TrimSpace(string(sha)))
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return exitOK
	}
	for _, setting := range info.Settings {
		if slices.Contains([]string{"vcs.revision", "vcs.time", "vcs.modified"}, setting.Key) {
			fmt.Fprintf(c.stdout, "%-9s %s\n", strings.TrimPrefix(setting.Key, "vcs.")+":", setting.Value)
		}
	}
	return exitOK
}
