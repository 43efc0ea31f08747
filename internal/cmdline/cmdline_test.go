package cmdline_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"hinit/internal/cmdline"
)

func TestFlagsMayStandAnywhere(t *testing.T) {
	verb := cmdline.Verb{Program: "hinit", Name: "logs", Args: "NAME...", Summary: "show logs", Action: "show the logs"}
	for _, test := range []struct {
		name, out, errs string
		args, words     []string
		code            int
		ok              bool
	}{
		{name: "a flag after a word", args: []string{"coder", "-n", "3", "web"}, words: []string{"coder", "web"}, ok: true},
		{name: "flags end at two dashes", args: []string{"-n", "3", "--", "-n"}, words: []string{"-n"}, ok: true},
		{name: "no word", code: cmdline.ExitUsage, errs: "cannot show the logs: expected: hinit logs NAME...\n"},
		{name: "three words", args: []string{"a", "b", "c"}, code: cmdline.ExitUsage, errs: "cannot show the logs: expected: hinit logs NAME...\n"},
		{
			name: "a flag that is nearly right", args: []string{"--gerp", "x"}, code: cmdline.ExitUsage,
			errs: "cannot show the logs: flag provided but not defined: --gerp; did you mean \"--grep\"?; see: hinit logs --help\n",
		},
		{
			name: "help", args: []string{"coder", "--help"}, code: cmdline.ExitDone,
			out: "usage: hinit logs NAME...\n\nshow logs\n\n  --grep RE          show lines that match RE\n  -n N               show the last N lines\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			flags := cmdline.NewFlagSet("logs")
			flags.Int("n", 10, "show the last `N` lines")
			flags.String("grep", "", "show lines that match `RE`")
			var out, errs bytes.Buffer
			words, code, ok := verb.Parse(flags, test.args, 1, 2, &out, &errs)
			if !slices.Equal(words, test.words) || code != test.code || ok != test.ok || out.String() != test.out || errs.String() != test.errs {
				t.Errorf("words %q, code %d, ok %t, printed %q and %q", words, code, ok, out.String(), errs.String())
			}
		})
	}
}

func TestADurationMayBeInDaysAndWeeks(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10m": 10 * time.Minute, "1d": 24 * time.Hour, "1.5d": 36 * time.Hour, "2w": 14 * 24 * time.Hour, "-1d": -24 * time.Hour, "1h30m": 90 * time.Minute,
	} {
		if got, err := cmdline.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "d", "nand", "infd", "40000w", "1e300d", "1 d", "soon", "5"} {
		if got, err := cmdline.ParseDuration(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
