package config

import (
	"path/filepath"
	"strconv"
	"strings"
)

// ImageDir is the directory to which docker/remove-s6 writes facts about the agent's image during the build. Only root can write
// to it.
const ImageDir = "/usr/share/hinit/image"

// Image describes how the version of the agent's image behaves. The zero value is an unknown image: hinit then behaves like the
// image of July 2026.
type Image struct {
	Version     string   // version of the agent, "" if the image is unknown
	Stamp       string   // value that differs for each build of the image
	Subcommands []string // subcommands of the agent: a CMD that begins with one runs the agent, even if a program has the same name

	// GatewayParks are the exit codes after which the image's s6 finish script leaves a gateway down. It is nil if the image has
	// no such script.
	GatewayParks []int
	// DashboardHost is the default address of the image's dashboard; "" means hinit's default.
	DashboardHost string
	// NoInsecure is true if the image's dashboard does not have the flag --insecure.
	NoInsecure bool
	// Stage2Fails is the effect of a failed boot step: "2" ends the boot, "1" is a warning, any other value is a note.
	Stage2Fails string
	// UnknownCommands are commands in the image's boot scripts that hinit does not know. Each begins with the name of its script.
	UnknownCommands []string
}

// readImage reads the facts about the agent's image from the files in dir. A file that a user other than root can change counts
// as missing.
func readImage(dir string) (m Image) {
	read := func(name string) string {
		data, doubt, err := ReadFile(filepath.Join(dir, name))
		if err != nil || doubt != nil {
			return ""
		}
		return string(data)
	}
	facts := make(map[string][]string)
	for line := range strings.Lines(read("facts")) {
		if words := strings.Fields(line); len(words) > 0 {
			facts[words[0]] = words[1:]
		}
	}
	first := func(fact string) string { return append(facts[fact], "")[0] }
	m.Version, m.Stamp, m.Subcommands = first("version"), first("stamp"), facts["subcommands"]
	m.DashboardHost, m.NoInsecure, m.Stage2Fails = first("dashboard_host"), first("dashboard_insecure") == "no", first("stage2_fails")
	if codes, known := facts["gateway_parks"]; known {
		m.GatewayParks = []int{}
		for _, w := range codes {
			if code, err := strconv.Atoi(w); err == nil {
				m.GatewayParks = append(m.GatewayParks, code)
			}
		}
	}
	for line := range strings.Lines(read("beyond")) {
		m.UnknownCommands = append(m.UnknownCommands, strings.TrimSuffix(line, "\n"))
	}
	return m
}

// applyImage sets keys that hinit.yaml does not set, so that hinit behaves like the agent's image. It returns the exit codes that
// park a gateway, which means that hinit keeps the gateway down.
func (l *loader) applyImage() (gatewayParks []int) {
	c := l.cfg
	if fails, ok := l.lookup("S6_BEHAVIOUR_IF_STAGE2_FAILS"); ok {
		c.Image.Stage2Fails = fails
	}
	if _, set := c.origins["boot.hooks"]; !set && c.Boot.Steps == StepsImage {
		c.Boot.Hooks = nil // the image's script runs the hooks
	}
	if _, set := c.origins["restart.park_on"]; !set && c.Image.GatewayParks != nil {
		return c.Image.GatewayParks
	}
	return c.Restart.ParkOn
}
