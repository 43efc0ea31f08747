package config

import (
	"path/filepath"
	"strconv"
	"strings"
)

// ImageDir is the directory with facts about the agent's image. docker/remove-s6 writes them when the image is built, and only root
// can change them.
const ImageDir = "/usr/share/hinit/image"

// Image describes how the agent's image behaves. For an image without such facts, Image is zero, and hinit assumes the image of
// July 2026.
type Image struct {
	Version     string   // version of the agent; "" if unknown
	BuildStamp  string   // text that differs for each build of the image
	Subcommands []string // subcommands of the agent; a CMD with one of these words runs the agent, even if the image has a program of that name

	// GatewayParkCodes are the exit codes after which the image's s6 finish script leaves a gateway down; nil without such a
	// script.
	GatewayParkCodes []int
	// DashboardHost is the address on which the image's dashboard listens by default. "" means hinit's default.
	DashboardHost string
	// DashboardLacksInsecure means that the image's dashboard has no flag --insecure.
	DashboardLacksInsecure bool
	// FailedStepEffect is the effect of a failed boot step: "2" ends the boot, "1" causes a warning, anything else a note.
	FailedStepEffect string
	// UnknownCommands are the commands in the boot scripts of the image that hinit doesn't know, each after the name of its
	// script.
	UnknownCommands []string
}

// readImage reads the facts about the agent's image from dir. It ignores a file that users other than root can change.
func readImage(dir string) (m Image) {
	read := func(name string) string {
		data, violation, err := ReadFile(filepath.Join(dir, name))
		if err != nil || violation != nil {
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
	first := func(fact string) string {
		if words := facts[fact]; len(words) > 0 {
			return words[0]
		}
		return ""
	}
	m.Version, m.BuildStamp, m.Subcommands = first("version"), first("stamp"), facts["subcommands"]
	m.DashboardHost, m.DashboardLacksInsecure, m.FailedStepEffect = first("dashboard_host"), first("dashboard_insecure") == "no", first("stage2_fails")
	if codes, known := facts["gateway_parks"]; known {
		m.GatewayParkCodes = []int{}
		for _, w := range codes {
			if code, err := strconv.Atoi(w); err == nil {
				m.GatewayParkCodes = append(m.GatewayParkCodes, code)
			}
		}
	}
	for line := range strings.Lines(read("beyond")) {
		m.UnknownCommands = append(m.UnknownCommands, strings.TrimSuffix(line, "\n"))
	}
	return m
}

// applyImage replaces defaults of keys that hinit.yaml doesn't set by the values for the agent's image.
func (l *loader) applyImage() {
	c := l.cfg
	if fails, ok := l.lookupVariable("S6_BEHAVIOUR_IF_STAGE2_FAILS"); ok {
		c.Image.FailedStepEffect = fails
	}
	if _, set := c.origins["boot.hooks"]; !set && c.Boot.PreparedBy == PreparedByImage {
		c.Boot.Hooks = nil
	}
	if _, set := c.origins["restart.park_on"]; !set && c.Image.GatewayParkCodes != nil {
		c.Restart.ParkCodes = c.Image.GatewayParkCodes
	}
}
