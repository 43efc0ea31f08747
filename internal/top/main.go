package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	tea "charm.land/bubbletea/v2"
	"github.com/samber/lo"

	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/top/feed"
	"hinit/internal/top/frame"
	"hinit/internal/top/model"
)

const actionText = "run hinit top"

// framesPerSecond limits how often the terminal library draws. A key shows its effect within a twentieth of a second, and the
// status of hinit changes once a second.
const framesPerSecond = 20

// Main runs `hinit top` with the arguments args, and returns the exit code.
func Main(args []string) int {
	return cmdline.RunWithOutput(func(out io.Writer) int { return run(cmdline.NewCall(topVerb(), args, out, os.Stderr)) })
}

func run(c *cmdline.Call) int {
	theme := 0
	if os.Getenv("NO_COLOR") != "" {
		theme = len(frame.Themes) - 1
	}
	themes := lo.Map(frame.Themes, func(t frame.Theme, _ int) string { return t.Name })
	listed := strings.Join(themes, ", ")
	c.Flags.Func("theme", "`NAME` of the colours: "+listed+"; NO_COLOR takes the last", func(name string) error {
		if theme = slices.Index(themes, name); theme < 0 {
			return errors.New("expected " + listed + cmdline.DidYouMean(name, themes))
		}
		return nil
	})
	noMouse := c.Flags.Bool("no-mouse", false, "leave the mouse to the terminal")
	var feeds []*feed.Feed
	var names []string
	hosts := "the inits to look after by their sockets, as `unix:PATH,…`; NAME=unix:PATH chooses the name on the screen"
	c.Flags.Func("H", hosts, func(list string) (err error) {
		feeds, names, err = openSockets(list)
		return err
	})
	once := c.Flags.Bool("once", false, "print the table once, as without a terminal")
	if words, code, ok := c.Parse(0, -1); !ok {
		return code
	} else if len(words) > 0 {
		return c.Fail(cmdline.ExitUsage, "cannot "+actionText+": it takes no names; filter with / on the screen")
	}
	if feeds == nil {
		f, err := feed.Open()
		if err != nil {
			return c.ReportError(actionText, err)
		}
		feeds, names = []*feed.Feed{f}, []string{""}
	}
	if *once || os.Getenv("TERM") == "dumb" || !proc.IsTerminal(os.Stdin) || !proc.IsTerminal(os.Stdout) {
		return c.ReportError(actionText, printOnce(c.Out, feeds, names))
	}
	return runScreen(c, feeds, names, theme, !*noMouse)
}

func topVerb() cmdline.Verb {
	var keys strings.Builder
	for _, k := range model.Keys("help") {
		fmt.Fprintf(&keys, "\n  %-14s %s", k[0], k[1])
	}
	return cmdline.Verb{
		Program: "hinit", Name: "top", Args: "[-H unix:PATH,…] [--theme NAME] [--no-mouse] [--once]",
		Summary: "look after all services on one screen", Help: "Keys:" + keys.String(),
	}
}

// openSockets opens a feed for each socket in list, the value of -H. A feed is the data source for one hinit. names are the
// names of the hosts on the screen. An empty list gives no feeds; the screen then shows the init of this container.
func openSockets(list string) (feeds []*feed.Feed, names []string, err error) {
	if list == "" {
		return nil, nil, nil
	}
	for word := range strings.SplitSeq(list, ",") {
		name, address, named := strings.Cut(word, "=")
		if !named {
			address = word
		}
		path, is := strings.CutPrefix(address, "unix:")
		if !is || path == "" {
			return nil, nil, fmt.Errorf("%q is no address; write unix:PATH with the path of the control socket", word)
		}
		if !named || name == "" {
			if name = filepath.Base(filepath.Dir(path)); slices.Contains(names, name) {
				name = path
			}
		}
		if slices.Contains(names, name) {
			return nil, nil, fmt.Errorf("%q is there twice; give each socket another name, as NAME=unix:PATH", name)
		}
		feeds, names = append(feeds, feed.OpenSocket(path)), append(names, name)
	}
	return feeds, names, nil
}

// printOnce prints the table of `hinit status`, for an output that is not a terminal. With several hosts, the host's name
// precedes each table.
func printOnce(out io.Writer, feeds []*feed.Feed, names []string) (failed error) {
	for i, f := range feeds {
		st, err := f.FetchStatus(context.Background())
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		if len(feeds) > 1 {
			fmt.Fprintf(out, "%s:\n", show.EscapeName(names[i]))
		}
		if _, err := out.Write(show.StatusTable(st, show.Layout{})); err != nil {
			return err
		}
	}
	return failed
}

// runScreen shows the screen until the user quits, a signal arrives or the terminal is closed. It returns the exit code.
func runScreen(c *cmdline.Call, feeds []*feed.Feed, names []string, theme int, mouse bool) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := &app{ctx: ctx, feeds: feeds, onlyThisContainer: names[0] == "", model: model.New(theme, names...), mouse: mouse}
	program := tea.NewProgram(a, tea.WithFPS(framesPerSecond), tea.WithContext(ctx))
	a.send = program.Send
	var fault atomic.Pointer[string]
	guard.SetPanicHandler(func(doing string, value any, stack []byte) {
		fault.CompareAndSwap(nil, new(fmt.Sprintf("hinit top has a fault while %s: %v\n%s", doing, value, stack)))
		program.Kill() // makes Run return, which restores the terminal
	})
	defer guard.SetPanicHandler(nil)
	_, err := program.Run()
	if message := fault.Load(); message != nil {
		fmt.Fprintln(os.Stderr, *message)
		return cmdline.ExitFailed
	}
	if errors.Is(err, tea.ErrInterrupted) {
		return 128 + int(syscall.SIGINT)
	}
	return c.ReportError(actionText, err)
}
