package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/top/feed"
	"hinit/internal/top/frame"
	"hinit/internal/top/model"
)

// The exit codes, as those of hinit.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// onceTime is how long the table that is printed once may take.
const onceTime = 10 * time.Second

// fps is how many frames a second the terminal library looks for. A key's effect is seen after the time of one; what hinit tells
// comes once a second.
const fps = 20

// Main runs hinit top with its arguments, and returns the exit code.
func Main(args []string) int {
	flags := flag.NewFlagSet("top", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	themeName := flags.String("theme", "", "")
	once := flags.Bool("once", false, "")
	noMouse := flags.Bool("no-mouse", false, "")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		help(os.Stdout)
		return exitDone
	case err != nil:
		return fail(exitUsage, "%v; see: hinit top --help", err)
	case flags.NArg() > 0:
		return fail(exitUsage, "it takes no names; filter with / on the screen")
	}
	theme, known := themeOf(*themeName)
	if !known {
		return fail(exitUsage, "there is no theme %q; there are: %s", *themeName, themeNames())
	}
	f, err := feed.Open(os.LookupEnv)
	if err != nil {
		return failed(err)
	}
	if *once || os.Getenv("TERM") == "dumb" || !isTerminal(os.Stdin) || !isTerminal(os.Stdout) {
		return printOnce(f)
	}
	return screen(f, theme, !*noMouse)
}

func themeOf(name string) (index int, known bool) {
	if name == "" {
		if os.Getenv("NO_COLOR") != "" {
			return len(frame.Themes) - 1, true
		}
		return 0, true
	}
	return frame.ThemeOf(name)
}

func themeNames() string {
	names := make([]string, len(frame.Themes))
	for i, t := range frame.Themes {
		names[i] = t.Name
	}
	return strings.Join(names, ", ")
}

func help(w io.Writer) {
	fmt.Fprintf(w, `usage: hinit top [--theme NAME] [--no-mouse] [--once]

look after all services on one screen

  --theme NAME   %s; NO_COLOR takes the last
  --no-mouse     leave the mouse to the terminal
  --once         print the table once, as without a terminal

Keys:
`, themeNames())
	for _, k := range model.Keys {
		fmt.Fprintf(w, "  %-14s %s\n", k[0], k[1])
	}
}

func fail(code int, format string, args ...any) int {
	fmt.Fprintln(os.Stderr, "cannot run hinit top: "+show.Line(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
	return code
}

func failed(err error) int {
	message := err.Error()
	if said := (*client.Error)(nil); errors.As(err, &said) {
		message = said.Message
	}
	return fail(show.Code(err), "%s", message)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// printOnce is for what is no terminal: the table of hinit status.
func printOnce(f *feed.Feed) int {
	ctx, cancel := context.WithTimeout(context.Background(), onceTime)
	defer cancel()
	st, err := f.Once(ctx)
	if err != nil {
		return failed(err)
	}
	if _, err := os.Stdout.Write(show.Status(st, show.Look{})); err != nil {
		return fail(exitFailed, "%v", err)
	}
	return exitDone
}

// screen shows the screen until somebody quits, a signal comes, or the terminal is gone.
func screen(f *feed.Feed, theme int, mouse bool) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := &app{ctx: ctx, feed: f, model: model.New(theme), mouse: mouse}
	program := tea.NewProgram(a, tea.WithFPS(fps), tea.WithContext(ctx))
	a.send = program.Send
	var fault atomic.Pointer[string]
	guard.Handle(func(doing string, value any, stack []byte) {
		said := fmt.Sprintf("hinit top has a fault while %s: %v\n%s", doing, value, stack)
		fault.CompareAndSwap(nil, &said)
		program.Kill() // Run gives the terminal back
	})
	defer guard.Handle(nil)
	_, err := program.Run()
	if said := fault.Load(); said != nil {
		fmt.Fprintln(os.Stderr, *said)
		return exitFailed
	}
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, tea.ErrInterrupted):
		return 128 + int(syscall.SIGINT)
	}
	return fail(exitFailed, "%v", err)
}
