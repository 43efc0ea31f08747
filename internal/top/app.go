package top

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/procusage"
	"hinit/internal/top/feed"
	"hinit/internal/top/model"
	"hinit/internal/wholefile"
)

const (
	tickInterval       = time.Second            // time between two updates of the ages on the screen, and between two checks whether hinit answers
	readDelay          = 150 * time.Millisecond // how long the cursor must stay on a service before top reads its log or its processes
	detailsInterval    = 2 * time.Second
	eventBatchInterval = 200 * time.Millisecond
	maxPastEvents      = 200 // number of past events in a new event pane
	maxOrders          = 8   // maximum number of orders in progress
)

// app connects the terminal library with the model and with the data sources. It implements tea.Model.
type app struct {
	ctx               context.Context //nolint:containedctx // context of the screen; stored here because the library calls methods without a context
	feeds             []*feed.Feed    // data sources, one for each host, in the model's order
	onlyThisContainer bool            // whether the init of this container is the only host
	model             *model.Model
	mouse             bool
	send              func(tea.Msg)
	dataNeeds         model.DataNeeds
	stopLog           context.CancelFunc // ends the goroutine that follows the log on the screen
	stopDetails       context.CancelFunc
	orderSlots        chan struct{} // semaphore for orders in progress
	followsEvents     bool          // whether a goroutine follows the events
	content           string        // text of the last frame
	drawnAt           time.Time
}

// modelUpdate is a message from a data source to the model. Only the goroutine of the terminal library may change the model, so
// it calls the modelUpdate. The results are a command for the library to run, and whether to draw the screen.
type modelUpdate func(now time.Time) (cmd tea.Cmd, draw bool)

// changeModel makes the goroutine of the terminal library call change and then draw the screen, because only that goroutine may
// change the model.
func (a *app) changeModel(change func(now time.Time)) {
	a.send(modelUpdate(func(now time.Time) (tea.Cmd, bool) {
		change(now)
		return nil, true
	}))
}

// Init implements tea.Model. It starts the goroutines that follow the status and measure the usage of each host.
func (a *app) Init() tea.Cmd {
	a.orderSlots, a.stopLog, a.stopDetails = make(chan struct{}, maxOrders), func() {}, func() {}
	a.model.Tick(time.Now())
	a.draw()
	for i, f := range a.feeds {
		guard.Go("following the status", func() {
			f.FollowStatus(a.ctx,
				func(c client.StatusChange) { a.changeModel(func(now time.Time) { a.model.ApplyChange(i, c, now) }) },
				func(err error) { a.changeModel(func(now time.Time) { a.model.HostLost(i, err.Error(), now) }) })
		})
		guard.Go("measuring", func() {
			f.FollowUsage(a.ctx, func(u map[string]procusage.Usage) {
				a.send(modelUpdate(func(now time.Time) (tea.Cmd, bool) {
					a.model.SetUsage(i, u, now)
					return nil, false
				}))
			})
		})
	}
	return a.tick()
}

// tick returns a command that waits for tickInterval, and then passes the time to the model. It skips the drawing shortly after
// another frame.
func (a *app) tick() tea.Cmd {
	return tea.Tick(tickInterval, func(time.Time) tea.Msg {
		return modelUpdate(func(now time.Time) (tea.Cmd, bool) {
			a.model.Tick(now)
			return a.tick(), now.Sub(a.drawnAt) >= tickInterval*3/4
		})
	})
}

// reportEnd returns a message about the end of the order o, with the result err.
func (a *app) reportEnd(o model.Order, err error) modelUpdate {
	return func(time.Time) (tea.Cmd, bool) { return a.startOrders(a.model.OrderEnded(o, err)), true }
}

// Update implements tea.Model. It handles one message: a modelUpdate, a key, a mouse event, or a new size of the screen.
func (a *app) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	draw := true
	switch msg := msg.(type) {
	case modelUpdate:
		cmd, draw = msg(time.Now())
	case tea.WindowSizeMsg:
		a.model.Resize(msg.Width, msg.Height)
	case tea.KeyPressMsg:
		a.model.Tick(time.Now())
		key := msg.String()
		if msg.Text != "" && msg.Text != " " {
			key = msg.Text
		}
		cmd = a.startOrders(a.model.Key(key))
	case tea.PasteMsg:
		for _, r := range msg.Content {
			a.model.Paste(r)
		}
	case tea.MouseClickMsg:
		if draw = msg.Button == tea.MouseLeft; draw {
			a.model.Click(msg.X, msg.Y)
		}
	case tea.MouseWheelMsg:
		by := map[tea.MouseButton]int{tea.MouseWheelUp: -1, tea.MouseWheelDown: 1}[msg.Button]
		if draw = by != 0; draw {
			a.model.Wheel(msg.Y, by)
		}
	default:
		draw = false
	}
	switch {
	case !draw:
	case a.model.IsQuitting():
		return a, tea.Quit
	default:
		a.updateSources()
		a.draw()
	}
	return a, cmd
}

// draw makes the frame that View returns. The library calls View after every message, but most messages don't change the screen.
func (a *app) draw() {
	a.drawnAt = time.Now()
	a.content = a.model.Frame().ANSI(a.model.Theme())
}

// View implements tea.Model. It returns the last frame.
func (a *app) View() tea.View {
	v := tea.NewView(a.content)
	v.AltScreen = true
	if a.mouse {
		v.MouseMode = tea.MouseModeCellMotion
	}
	return v
}

// startOrders carries out orders in goroutines, at most maxOrders at a time. For a shell, which needs the terminal, it returns a
// command for the library.
func (a *app) startOrders(orders []model.Order) (next tea.Cmd) {
	for _, o := range orders {
		from := a.feeds[o.Host]
		var act func() error
		switch o.Verb {
		case client.VerbStart, client.VerbStop, client.VerbRestart, client.VerbRunOnce:
			act = func() error { return from.SendOrder(a.ctx, o.Verb, o.Name) }
		case model.VerbSignal:
			act = func() error { return from.Signal(a.ctx, o.Name, o.Word) }
		case model.VerbSave:
			text := a.model.LogText()
			act = func() error { return wholefile.WriteNew(o.Word, []byte(text)) }
		case model.VerbShell:
			if a.onlyThisContainer {
				return tea.Exec(shellCommand{o.Name}, func(err error) tea.Msg { return a.reportEnd(o, err) })
			}
			act = func() error { return errOtherContainer }
		}
		guard.Go("giving an order", func() {
			if !pause.Send(a.ctx, a.orderSlots, struct{}{}) {
				return
			}
			defer func() { <-a.orderSlots }()
			a.send(a.reportEnd(o, act()))
		})
	}
	return nil
}

// updateSources starts and stops the data sources that only some panes need, by the present needs of the model.
func (a *app) updateSources() {
	now := a.model.DataNeeds()
	was := a.dataNeeds
	a.dataNeeds = now
	if now.Log != was.Log {
		a.stopLog()
		a.stopLog = a.startAfterReadDelay(now.Log.File != "", "following a log", func(ctx context.Context) {
			a.feeds[now.Log.Host].FollowLog(ctx, now.Log, func(lines []model.LogLine) {
				a.changeModel(func(time.Time) {
					if now.Log == a.dataNeeds.Log { // the cursor may be on another service by now
						a.model.AddLogLines(now.Log, lines)
					}
				})
			})
		})
	}
	if now.DetailsOf != was.DetailsOf || now.PID != was.PID {
		a.stopDetails()
		a.stopDetails = a.startAfterReadDelay(now.DetailsOf.Name != "", "looking at processes", func(ctx context.Context) {
			for ctx.Err() == nil {
				in := a.feeds[now.DetailsOf.Host].ReadProcesses(now.DetailsOf, now.PID)
				a.changeModel(func(time.Time) { a.model.SetProcessDetails(in) })
				pause.For(ctx, detailsInterval)
			}
		})
	}
	if now.Events && !a.followsEvents { // the goroutine continues after the pane is closed, so that no event is missing when the pane opens again
		a.followsEvents = true
		guard.Go("following the events", a.followEvents)
	}
}

// startAfterReadDelay calls run in a goroutine after readDelay, if wanted is true. The returned function cancels the delay or the
// context of run; call it when the cursor moves on. doing describes the goroutine in the report of a panic.
func (a *app) startAfterReadDelay(wanted bool, doing string, run func(ctx context.Context)) context.CancelFunc {
	ctx, cancel := context.WithCancel(a.ctx)
	if !wanted {
		return cancel
	}
	guard.Go(doing, func() {
		if pause.For(ctx, readDelay) {
			run(ctx)
		}
	})
	return cancel
}

// followEvents passes events to the model in batches, because each message to the model draws a frame.
func (a *app) followEvents() {
	fresh := make(chan func(), 256) // functions that add one event to the model each
	for i, f := range a.feeds {
		guard.Go("reading the events", func() {
			f.FollowEvents(a.ctx, maxPastEvents, func(e client.Event) { pause.Send(a.ctx, fresh, func() { a.model.AddEvent(i, e) }) })
		})
	}
	for {
		var batch []func()
		select {
		case add := <-fresh:
			batch = append(batch, add)
		case <-a.ctx.Done():
			return
		}
		pause.For(a.ctx, eventBatchInterval)
		for range len(fresh) { // this goroutine alone receives, so these receives don't block
			batch = append(batch, <-fresh)
		}
		a.changeModel(func(time.Time) {
			for _, add := range batch {
				add()
			}
		})
	}
}

// shellCommand runs `hinit shell NAME` on the terminal of this process. It implements tea.ExecCommand; the library suspends the
// screen until the shell ends.
type shellCommand struct{ name string }

// Run runs the shell until it ends. It ignores the exit code, because the last command in the shell has determined it.
func (s shellCommand) Run() error {
	hinit, err := cmdline.HinitPath()
	if err != nil {
		return err
	}
	_, err = proc.Run(context.Background(), proc.Spec{
		ID: 1, Path: hinit, Argv: []string{"hinit", "shell", s.name}, Env: os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, SameSession: true,
	})
	return err
}

// SetStdin implements tea.ExecCommand. Like the next two methods it does nothing, because the shell uses the files of this
// process.
func (shellCommand) SetStdin(io.Reader) {}

func (shellCommand) SetStdout(io.Writer) {}

func (shellCommand) SetStderr(io.Writer) {}

// errOtherContainer means that the user has asked for a shell of a service in another container.
var errOtherContainer = errors.New("cannot open a shell of another container: it is made from the configuration here; call hinit shell in that container")
