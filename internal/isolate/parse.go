package isolate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"hinit/internal/isolation"
)

// Parse reads arguments that [isolation.Plan.Argv] has made.
func Parse(argv []string) (p isolation.Plan, command []string, err error) {
	end := isolation.Head(argv)
	if end == 0 {
		return p, nil, errors.New("the command is missing")
	}
	for _, word := range argv[1 : end-1] {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "name":
			p.Name = value
		case "home":
			p.Home = value
		case "refused":
			p.Refused = value
		case "hide":
			p.Hide = append(p.Hide, value)
		case "share":
			p.Share = append(p.Share, value)
		case "read":
			p.Read = append(p.Read, value)
		case "port":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return p, nil, fmt.Errorf("cannot read the port %q: %w", value, err)
			}
			p.Ports = append(p.Ports, int(port))
		case "control":
			p.Control = true
		case "marked":
			p.Marked = true
		case "degrade":
			p.Degrade = true
		default:
			return p, nil, fmt.Errorf("%q is no part of an isolation", word)
		}
	}
	return p, argv[end:], nil
}
