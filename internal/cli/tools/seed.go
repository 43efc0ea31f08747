package tools

import (
	"fmt"

	"hinit/internal/boot"
	"hinit/internal/boot/keep"
	"hinit/internal/cli"
)

type seedReport struct {
	File  string   `json:"file"`  // file with the data directory and the steps
	Steps []string `json:"steps"` // boot steps that an empty volume can skip
}

var seedVerb = cli.Verb{
	Name: "seed", Action: "keep the data directory", Args: "[--to FILE] [--json]",
	Summary: "for the build of an image: keep what the first boot has made of the empty data directory",
	Run: func(t *cli.Terminal, c *cli.Call) int {
		to := c.Flags.String("to", boot.SeedFile, "file to keep it in; hinit looks at the default")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		kept := seedReport{File: *to, Steps: []string{}}
		cfg, err := t.Config()
		if err == nil {
			var steps []string
			steps, err = keep.SaveSeed(cfg.Home, *to)
			kept.Steps = append(kept.Steps, steps...)
		}
		return t.ShowResult(c, kept, err, func() {
			if len(kept.Steps) == 0 {
				fmt.Fprintln(t.Out, "nothing is kept: no boot step with inputs has run")
			}
			for _, step := range kept.Steps {
				fmt.Fprintln(t.Out, "kept:", step)
			}
		})
	},
}
