package config

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ImageDir holds the facts about the agent's image that docker/remove-s6 wrote during the build. Only root can write it.
const ImageDir = "/usr/share/hinit/image"

// Image describes the behaviour of the agent's image, where its versions differ. The zero value is an unknown image: hinit then
// behaves as the image of July 2026.
type Image struct {
	Version     string   // of the agent, "" when nothing is known of the image
	Stamp       string   // another one for each build of the image
	Subcommands []string // the agent's: as the first word of the CMD they mean the agent, also where a program has the name

	// GatewayParks are the exit codes after which the image's finish script leaves a gateway down; nil: it has no such script.
	GatewayParks []int
	// DashboardHost is the default address of the image's dashboard, "" for hinit's.
	DashboardHost string
	// NoInsecure: the image's dashboard has no --insecure.
	NoInsecure bool
	// Stage2Fails says what a failed boot step does: "2" ends the boot, "1" is a warning, anything else is a note.
	Stage2Fails string
	// Beyond are commands of the image's boot scripts that hinit does not know, each after the name of its script.
	Beyond []string
}

// readImage reads the facts about the image in dir. Files that others than root can change count as missing.
func readImage(dir string) (m Image) {
	read := func(name string) string {
		data, doubt, err := readFile(filepath.Join(dir, name))
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
	m.Beyond = slices.Collect(strings.SplitSeq(strings.TrimSuffix(read("beyond"), "\n"), "\n"))
	if m.Beyond[0] == "" {
		m.Beyond = nil
	}
	return m
}

// image applies the image's decisions to keys that are not set. It returns the exit codes that park a gateway.
func (l *loader) image() (gatewayParks []int) {
	c := l.cfg
	if fails, ok := l.lookup("S6_BEHAVIOUR_IF_STAGE2_FAILS"); ok {
		c.Image.Stage2Fails = fails
	}
	if _, set := c.origins["boot.hooks"]; !set && c.Boot.Steps == StepsImage {
		c.Boot.Hooks = nil // the image's script runs them
	}
	if _, set := c.origins["restart.park_on"]; !set && c.Image.GatewayParks != nil {
		return c.Image.GatewayParks
	}
	return c.Restart.ParkOn
}
